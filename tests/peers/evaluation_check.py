"""lm-eval against recipes/serve.lua: what it gets for each document over HTTP is the engine's own without it, to the last digit, and so are
its scores: choices by their likelihood, the likelihood of texts, generated texts, by completions and in chats."""
import json
import logging
import os

from peers import TEXT, WORK, check, expect, row
from serving import KEY, own, serving

os.environ.update(HF_HOME=str(WORK / "hub"), HF_HUB_OFFLINE="1", OPENAI_API_KEY=KEY)
import lm_eval  # noqa: E402  (it reads the environment)
import qeng  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

logging.getLogger("lm_eval").setLevel(logging.ERROR)
WORDS = ["hat", "brush", "ladder", "kettle", "dog", "river", "jar", "lamp", "box", "orange"]
TURN = "<|im_start|>user\nWhere is the {}?<|im_end|>\n<|im_start|>assistant"
# The last two are choices of an answer after which the model ends: the harness counts on one token more than the prompt's.
CHOICES = [{"context": f"The {word}", "choices": [" is", " was in the", f" of the {word}", ", ?"], "gold": i % 4} for i, word in enumerate(WORDS)]
CHOICES += [{"context": TURN.format(word), "choices": [f"\nIn {word}.", "\nIn Oscar.", "\nThe box."], "gold": 0} for word in ["hat", "dog"]]
TEXTS = [{"text": line} for line in TEXT.splitlines() if line]
QUESTIONS = [{"question": f"Where is the {word}?", "answer": f"In {word}"} for word in WORDS]
ENDS = {"until": ["\n\n", "."], "max_gen_toks": 24, "do_sample": False}
EXACT = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]


def tasks():
    """Writes the tasks' files."""
    folder = WORK / "tasks"
    folder.mkdir()
    kinds = {
        "choices": (CHOICES, {"output_type": "multiple_choice", "doc_to_text": "context", "doc_to_choice": "choices", "doc_to_target": "gold",
                              "target_delimiter": ""}),
        "texts": (TEXTS, {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text",
                          "metric_list": [{"metric": "bits_per_byte"}]}),
        "answers": (QUESTIONS, {"output_type": "generate_until", "doc_to_text": "question", "doc_to_target": "answer", "generation_kwargs": ENDS,
                                "metric_list": EXACT}),
    }
    for name, (documents, task) in kinds.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(document) + "\n" for document in documents))
        (folder / f"{name}.yaml").write_text(json.dumps({  # JSON is YAML
            "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test", **task}))
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluated(manager, model, url, names, **options):
    """What each document of the tasks got, in their order, and the tasks' scores."""
    chat = model == "local-chat-completions"
    arguments = {"model": "tiny", "base_url": url, "max_length": 1024, "max_retries": 1, **options}
    if not chat:
        arguments.update(tokenizer=str(qeng.ROOT / "recipes/tiny"), tokenizer_backend="huggingface")
    batch = arguments.pop("batch_size", 1)
    found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=names, task_manager=manager, batch_size=batch, apply_chat_template=chat,
                                    log_samples=True, bootstrap_iters=0)
    got = {name: [sample["resps"] for sample in sorted(found["samples"][name], key=lambda sample: sample["doc_id"])] for name in names}
    return got, found["results"]


def likelihoods(pairs):
    """Of each (context, continuation): the log probability of the continuation, and whether it is the likeliest."""
    scored = own([{"prompt": context + more, "max_tokens": 0, "prompt_logprobs": 1} for context, more in pairs])
    before = own([{"prompt": context, "max_tokens": 0, "prompt_logprobs": 1} for context, _ in pairs])
    found = []
    for whole, context in zip(scored, before):
        tokens = whole["prompt"][context["prompt_tokens"] - 1:]
        found.append((sum(logprob for logprob, _ in tokens), all(logprob == best for logprob, best in tokens)))
    return found


def generated(chat):
    prompts = [{"messages": [{"role": "user", "content": each["question"]}]} if chat else {"prompt": each["question"]} for each in QUESTIONS]
    return [each["text"] for each in own([{**prompt, "temperature": 0, "max_tokens": 24, "stop": ENDS["until"]} for prompt in prompts])]


def same(got, expected, what):
    expect(len(got) == len(expected), f"{what}: {len(got)} documents, expected {len(expected)}")
    for number, pair in enumerate(zip(got, expected)):
        expect(pair[0] == pair[1], f"{what}, document {number}: {pair[0]} by HTTP, {pair[1]} of the engine")


def score(results, name, metric):
    return results[name][f"{metric},none"]


def by_likelihood(manager, url):
    pairs = [(each["context"], choice) for each in CHOICES for choice in each["choices"]]
    flat = iter(likelihoods(pairs))
    expected = [[next(flat) for _ in each["choices"]] for each in CHOICES]
    gold = [max(range(len(one)), key=lambda i, one=one: one[i][0]) == each["gold"] for one, each in zip(expected, CHOICES)]
    rolled = [one[0] for one in likelihoods([("<|im_end|>", each["text"]) for each in TEXTS])]
    for how in [{}, {"batch_size": 5}, {"num_concurrent": 4}, {"tokenized_requests": False}]:
        got, results = evaluated(manager, "local-completions", url + "/completions", ["choices", "texts"], **how)
        same([[tuple(each[0]) for each in one] for one in got["choices"]], expected, f"choices {how}")
        same([one[0][0] for one in got["texts"]], rolled, f"texts {how}")
        expect(score(results, "choices", "acc") == sum(gold) / len(gold), f"acc {score(results, 'choices', 'acc')}, expected {sum(gold)}/{len(gold)}")


def by_text(manager, url, chat):
    model, path = ("local-chat-completions", "/chat/completions") if chat else ("local-completions", "/completions")
    expected = generated(chat)
    for how in [{}, {"num_concurrent": 4}]:
        got, results = evaluated(manager, model, url + path, ["answers"], **how)
        same([one[0][0] for one in got["answers"]], expected, f"answers {how}")
        right = sum(text == each["answer"] for text, each in zip(expected, QUESTIONS)) / len(QUESTIONS)
        expect(score(results, "answers", "exact_match") == right, f"exact_match {score(results, 'answers', 'exact_match')}, expected {right}")


with serving() as address:
    manager, v1 = tasks(), address + "/v1"
    with check("lm-eval: likelihoods and their scores are those without HTTP"):
        by_likelihood(manager, v1)
    with check("lm-eval: generated texts and their scores are those without HTTP"):
        by_text(manager, v1, chat=False)
    with check("lm-eval: answers in chats and their scores are those without HTTP"):
        by_text(manager, v1, chat=True)
row("lm-eval", lm_eval.__version__, 3)

"""The dashboard under a browser, Debian's chromium: every page loads without an error at the widths of a telephone, a tablet and a desk,
and nothing of it is wider; a chat streams, is stopped and branches; a run is followed as it grows; an adapter is trained, served and asked;
datasets, kernels, caches and plans are shown; layers on two workers are seen, and that one is lost; the key is asked once and sent with
what the pages fetch. QENG_SCREENSHOTS=DIR keeps pictures."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import qeng
from peers import WORK, Skip, check, expect
from serving import KEY, serving

PAGES = ["overview", "chat", "requests", "models", "runs", "jobs", "packets", "kernels", "kv", "peers"]
WIDTHS = [390, 1024, 1920]
RUN = [f'{{"step": {i}, "loss": {8 / i}, "tok_s": {10000 + i}, "lr": 0.001, "grad_norm": 1}}\n' for i in range(1, 40)]

# The built-in model ends its answers within milliseconds: in its place comes one that does not end, so that there is something to stop.
HELD = """() => { const real = fetch; window.fetch = (path, options) => path !== "/v1/chat/completions" ? real(path, options) :
    Promise.resolve(new Response(new ReadableStream({ start(to) {
      to.enqueue(new TextEncoder().encode('data: {"choices": [{"delta": {"content": "so far"}}]}\\n\\n'));
      options.signal.addEventListener("abort", () => to.error(options.signal.reason));
    } }))) }"""


def datasets(root):
    """data.jsonl, good.qubgpu made of it, and flipped.qubgpu, which has another byte in its first record."""
    talk = [[{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": f"It is {i}."}] for i in range(24)]
    (root / "data.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in talk))
    qeng.run("recipes/convert.lua", root / "data.jsonl", root / "good.qubgpu", "--tokenizer", qeng.ROOT / "recipes/tiny", "--overwrite")
    flipped = bytearray((root / "good.qubgpu").read_bytes())
    flipped[4096 + 10] ^= 1  # behind the header, and that of the first frame
    (root / "flipped.qubgpu").write_bytes(flipped)


@contextlib.contextmanager
def workers(count):
    """Workers of this machine, of keys of their own: [(process, address)...]."""
    if not pathlib.Path(qeng.EXECUTABLE).with_name("libqeng_peers.so").exists():
        raise Skip("libqeng_peers.so is not built here")
    before, started = os.environ.get("QENG_KEYS"), []
    os.environ["QENG_KEYS"] = str(WORK / "keys")
    try:
        for i in range(count):
            command = [qeng.EXECUTABLE, str(qeng.ROOT / "recipes/worker.lua"), "--listen", "127.0.0.1:0", "--silent", "--cache", str(WORK / f"cache{i}")]
            started.append((subprocess.Popen(command, stdout=subprocess.PIPE, text=True), ""))
            started[i] = (started[i][0], re.search(r" at (\S+)", started[i][0].stdout.readline())[1])
        yield started
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
            process.stdout.close()
        os.environ.pop("QENG_KEYS")
        if before is not None:
            os.environ["QENG_KEYS"] = before


@contextlib.contextmanager
def browsing(*options):
    """A browser's context with the key, and the address of a server that has a run. options: more of its own."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise Skip("there is no playwright") from error
    chromium = shutil.which("chromium")
    if not chromium:
        raise Skip("there is no chromium")
    root = WORK / "dashboard"
    shutil.rmtree(root, ignore_errors=True)  # what an earlier check left
    for name in ["one", "two"]:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "metrics.jsonl").write_text("".join(RUN))
    datasets(root)
    with serving("--root", str(root), *options) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            context = browser.new_context(http_credentials={"username": "anyone", "password": KEY})
            context.set_default_timeout(120000)  # other checks run beside this one
            yield context, address
        finally:
            browser.close()


def watched(context):
    """A page, and what it complains about."""
    page, words = context.new_page(), []
    page.on("console", lambda message: words.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: words.append(str(error)))
    page.on("response", lambda answer: words.append(f"{answer.status} {answer.url}") if answer.status >= 400 and answer.status != 401 else None)
    return page, words


def picture(page, name):
    if folder := os.environ.get("QENG_SCREENSHOTS"):
        for scheme in ["light", "dark"]:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=pathlib.Path(folder) / f"{name}-{scheme}.png", full_page=True)


def fits(page, name):
    """The same at every width; pictures of each."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        picture(page, f"{name}-{width}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        expect(wide <= width, f"{name} is {wide} pixels wide at {width}")


def ask(page, question, tokens):
    page.get_by_label("Most tokens").fill(str(tokens))
    page.get_by_label("Question (Ctrl", exact=False).fill(question)
    page.get_by_role("button", name="Send").click()


with check("dashboard: each page loads without an error and fits 390, 1024 and 1920 pixels"), browsing() as (context, address):
    for width in WIDTHS:
        for name in PAGES:
            page, words = watched(context)
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{address}/#/{name}")
            page.get_by_role("heading", level=1).wait_for()
            page.wait_for_timeout(2500)  # a round of what it polls
            picture(page, f"{name}-{width}")
            expect(not words, f"{name} at {width}: {words}")
            expect(page.locator("#problem").is_hidden(), f"{name} at {width}: {page.locator('#problem').text_content()}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            expect(wide <= width, f"{name} is {wide} pixels wide at {width}")
            page.close()

with check("dashboard: the overview names what memory is for, and the device's limits"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(address)
    page.get_by_role("row").filter(has=page.get_by_role("cell", name="weights", exact=True)).get_by_text("MiB").wait_for()
    page.get_by_role("row").filter(has_text="bandwidth").wait_for()
    fits(page, "overview-figures")
    expect(not words, f"{words}")

with check("dashboard: a chat streams, is stopped, and a question that is edited begins a branch"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/chat")
    page.get_by_label("Shade what is unsure").check()
    page.get_by_label("Beside it").select_option("tiny")
    ask(page, "Where is the hat?", 24)
    answers = page.locator(".answer")
    page.locator(".answer[aria-busy=false]").nth(1).wait_for()
    expect(answers.count() == 2, f"{answers.count()} answers of two models")
    expect(all(text.strip() for text in page.locator(".answer .text").all_text_contents()), "an answer is empty")
    expect(page.locator(".answer .text span").count() > 2, "no token has its probability")
    picture(page, "chat-two")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("The question anew").fill("<b>Where is the dog?</b>")
    page.get_by_role("button", name="Ask this").click()
    page.get_by_text("2 of 2").wait_for()
    expect(page.locator(".said b").count() == 0, "a text became markup")
    page.get_by_role("button", name="Branch before").click()
    page.get_by_text("Where is the hat?").wait_for()
    page.get_by_label("Beside it").select_option("")
    page.evaluate(HELD)
    ask(page, "And then?", 64)
    page.get_by_text("so far").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").wait_for()
    expect(page.get_by_role("button", name="Send").is_enabled(), "nothing can be sent after a stop")
    expect(not words, f"{words}")

with check("dashboard: a run is followed as it grows, and a new one is offered"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/runs")
    row = page.get_by_role("row").filter(has_text="two")
    row.get_by_text("39", exact=True).wait_for()
    root = WORK / "dashboard"
    with open(root / "two/metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 40, "loss": 0.125, "tok_s": 1, "lr": 0.001, "grad_norm": 1}\n')
    row.get_by_text("40", exact=True).wait_for()
    page.get_by_role("img", name="Loss; last: two 0.125").wait_for()
    (root / "three").mkdir()
    (root / "three/metrics.jsonl").write_text("".join(RUN))
    page.get_by_label("three").check()
    page.get_by_role("img", name="Loss; last: two 0.125, three 0.205").wait_for()
    expect(not words, f"{words}")

with check("dashboard: a run on several ranks shows their exchange, one without ranks does not"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/runs")
    page.get_by_role("img", name="Loss; last: two").wait_for()
    expect(page.get_by_text("Exchange between ranks").is_hidden(), "a run without ranks has an exchange")
    root = WORK / "dashboard"
    (root / "four").mkdir()
    (root / "four/metrics.jsonl").write_text("".join(f'{{"step": {i}, "loss": 1, "exchange_ms": {20 + i}, "exchange_wait_ms": {i}}}\n' for i in range(1, 9)))
    page.get_by_label("four").check()
    page.get_by_role("img", name="Exchange between ranks; last: two –, four 28").wait_for()
    page.get_by_role("img", name="Waiting for the exchange; last: two –, four 8").wait_for()
    fits(page, "runs-ranks")
    expect(not words, f"{words}")

with check("dashboard: an adapter is trained from the page, served and asked"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/jobs")
    page.get_by_label("Data within --root").fill("data.jsonl")
    page.get_by_label("steps").fill("30")
    page.get_by_role("button", name="Train").click()
    page.get_by_role("heading", name="train-").wait_for()
    name = page.get_by_role("heading", name="train-").text_content()
    page.goto(f"{address}/#/runs")
    page.get_by_label(f"jobs/{name}").wait_for()
    page.goto(f"{address}/#/jobs")
    row = page.get_by_role("row").filter(has_text=name)
    row.get_by_role("button", name="Show").click()
    row.get_by_role("button", name="Serve it").click()
    page.get_by_role("img", name="Loss; last: jobs/train-").wait_for()
    fits(page, "jobs-trained")
    page.goto(f"{address}/#/models")
    page.get_by_label(f"Scale of {name}").wait_for()
    page.goto(f"{address}/#/chat")
    page.get_by_label("Model").select_option(name)
    ask(page, "Number 7?", 16)
    page.locator(".answer[aria-busy=false]").wait_for()
    expect(page.locator(".answer strong").text_content() == name and page.locator(".answer .text").text_content().strip(), "the adapter is silent")
    page.goto(f"{address}/#/kv")
    page.get_by_role("row").filter(has_text=name).wait_for()  # what it read is remembered under its name
    fits(page, "kv-used")
    expect(not words, f"{words}")

with check("dashboard: a dataset shows what is trained, and one with another byte where it is damaged"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/packets")
    page.get_by_role("button", name="Show good.qubgpu").click()
    page.get_by_role("heading", name="good.qubgpu").wait_for()
    record = page.get_by_label("Record 3", exact=True)
    expect("Number 3?" in record.text_content(), "a question is not shown")
    expect("It is 3." in record.locator("mark").first.text_content(), "what is trained is not marked")
    expect(all("Number" not in text for text in page.locator("mark").all_text_contents()), "a question is marked")
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Record 12", exact=True).wait_for()
    page.get_by_role("button", name="Verify").click()
    page.get_by_text("every frame of 24 records").wait_for()
    fits(page, "packets-good")
    page.get_by_role("button", name="Show flipped.qubgpu").click()
    page.get_by_role("heading", name="flipped.qubgpu").wait_for()
    expect("damaged" in page.get_by_label("Record 0", exact=True).text_content(), "the damaged record is shown as whole")
    page.get_by_role("button", name="Verify").click()
    page.get_by_text("1 of 24 records, 1 of 1 blocks").wait_for()
    page.get_by_role("cell", name="record 0", exact=True).wait_for()
    fits(page, "packets-flipped")
    expect(not words, f"{words}")

with check("dashboard: kernels are measured, a plan is made, a model is quantized"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/kernels")
    page.get_by_label("Tokens of the prompt").fill("64")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("cell", name="row_linear", exact=True).nth(1).wait_for()
    fits(page, "kernels-measured")
    page.goto(f"{address}/#/models")
    page.get_by_label("Model, path within --root, or 1b to 90b").fill("tiny")
    page.get_by_label("What for").select_option("lora")
    page.get_by_role("button", name="Plan").click()
    page.get_by_text("Fits on").wait_for()
    page.get_by_role("button", name="Quantize").click()
    page.get_by_text("has begun and will write").wait_for()
    fits(page, "models-planned")
    page.get_by_role("link", name="Jobs").last.click()
    page.get_by_role("row").filter(has_text="quantize").filter(has_text="done").wait_for()
    expect(not words, f"{words}")

with check("dashboard: where no model has layers on peers, it says so"), browsing() as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/peers")
    page.get_by_text("No model has layers on peers.").wait_for()
    expect(page.get_by_role("table").count() == 0, "a table of nothing")
    expect(not words, f"{words}")

with check("dashboard: layers on two workers are seen, their steps, and that one is lost"), workers(2) as (one, two), browsing(
        "--peers", f"{one[1]},{two[1]}", "--peer-ranges", f"{one[1]}=1,here=1,{two[1]}=1") as (context, address):
    page, words = watched(context)
    page.goto(f"{address}/#/peers")
    page.get_by_role("img", name="Layers: 0 ").wait_for()
    parts = page.locator(".layers span")
    expect(parts.count() == 3, f"{parts.count()} ranges of layers")
    sizes = [parts.nth(i).bounding_box()["width"] for i in range(3)]
    expect(max(sizes) - min(sizes) < 2, f"layers as wide as {sizes}")
    times = page.get_by_label("Time and links")
    page.goto(f"{address}/#/chat")
    ask(page, "Where is the hat?", 16)
    page.locator(".answer[aria-busy=false]").wait_for()
    page.goto(f"{address}/#/peers")
    times.get_by_text("ms").first.wait_for()
    fits(page, "peers-used")
    two[0].kill()
    page.get_by_text("not here: ").wait_for()
    page.get_by_role("img", name="not loaded").wait_for()
    fits(page, "peers-lost")
    expect(not words, f"{words}")

with check("dashboard: without the key there is nothing"), browsing() as (context, address):
    answer = context.browser.new_context().request.get(address)
    expect(answer.status == 401 and answer.headers["www-authenticate"].startswith("Basic "), f"status {answer.status}, {answer.headers}")

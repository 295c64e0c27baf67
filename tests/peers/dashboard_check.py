"""The dashboard under a browser, Debian's chromium: every page loads without an error at the widths of a telephone, a tablet and a desk,
and nothing of it is wider; a chat streams, is stopped and branches; the key is asked once and sent with what the pages fetch.
QENG_SCREENSHOTS=DIR keeps pictures."""
import contextlib
import os
import pathlib
import shutil

from peers import WORK, Skip, check, expect
from serving import KEY, serving

PAGES = ["overview", "chat", "requests", "models", "runs", "jobs"]
WIDTHS = [390, 1024, 1920]
RUN = [f'{{"step": {i}, "loss": {8 / i}, "tok_s": {10000 + i}, "lr": 0.001, "grad_norm": 1}}\n' for i in range(1, 40)]

# The built-in model ends its answers within milliseconds: in its place comes one that does not end, so that there is something to stop.
HELD = """() => { const real = fetch; window.fetch = (path, options) => path !== "/v1/chat/completions" ? real(path, options) :
    Promise.resolve(new Response(new ReadableStream({ start(to) {
      to.enqueue(new TextEncoder().encode('data: {"choices": [{"delta": {"content": "so far"}}]}\\n\\n'));
      options.signal.addEventListener("abort", () => to.error(options.signal.reason));
    } }))) }"""


@contextlib.contextmanager
def browsing():
    """A browser's context with the key, and the address of a server that has a run."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise Skip("there is no playwright") from error
    chromium = shutil.which("chromium")
    if not chromium:
        raise Skip("there is no chromium")
    root = WORK / "dashboard"
    for name in ["one", "two"]:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "metrics.jsonl").write_text("".join(RUN))
    with serving("--root", str(root)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield browser.new_context(http_credentials={"username": "anyone", "password": KEY}), address
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
        page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=True)


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

with check("dashboard: without the key there is nothing"), browsing() as (context, address):
    answer = context.browser.new_context().request.get(address)
    expect(answer.status == 401 and answer.headers["www-authenticate"].startswith("Basic "), f"status {answer.status}, {answer.headers}")

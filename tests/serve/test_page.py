"""Test the web page in headless Chromium with a real server on the embedded model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from paceline import LLM, SamplingParams, demo
from paceline.serve.page import HEADERS
from tests.support.browser import CHROMIUM, DRIVER, ENTER, ESCAPE, RIGHT, Browser, browser
from tests.support.serving import KEY, Served, served

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no chromium with chromedriver on this machine"
)
QUESTION = "A ferry carries 36 cars on each trip. How many cars does the ferry carry on 8 trips?"
FILES = (
    "/",
    "/operator",
    "/page/chat.js",
    "/page/page.css",
    "/page/icon.svg",
    "/page/about.json",
    "/page/operator.json",
)
GUESSED = (
    "[...document.querySelectorAll('.answer .token')].findIndex((one) =>"
    " !one.classList.contains('o-target'))"
)
_OPTIONS = "document.getElementById('drafter').options.length"
_NOTE = "document.querySelector('.answer:last-of-type .note')?.textContent"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        one.look(1280, 800)
        yield one


@pytest.fixture(scope="module")
def open_server() -> Iterator[Served]:
    """Run a server that needs no key and always drafts."""
    with served(LLM(demo.TARGET, "prompt_lookup:budget=false", dtype="float32"), ()) as one:
        yield one


def ask(window: Browser, question: str, tokens: int = 40) -> str:
    """Send a question, wait for the end, and return the note below the answer."""
    window.run("document.getElementById('length').value = arguments[0]", tokens)
    window.type("#question", question)
    window.press(ENTER)
    return str(window.wait(_NOTE))


def test_files_have_a_content_policy_and_no_foreign_links(open_server: Served) -> None:
    for path in FILES:
        answer = open_server.get(path)
        assert answer.status_code == 200, path
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text), path
        assert not re.search(r"innerHTML|<script>|\son[a-z]+=|style=", answer.text), path
    assert open_server.get("/page/__init__.py").status_code == 404


@needs_browser
@pytest.mark.browser
def test_a_chat_shows_where_tokens_came_from(open_server: Served, window: Browser) -> None:
    window.open(open_server.url)
    window.wait(_OPTIONS)
    note = ask(window, QUESTION)
    llm = open_server.serving.llm
    wanted = llm.chat([{"role": "user", "content": QUESTION}], SamplingParams(40))
    assert window.run("return document.querySelector('.answer .text').textContent") == wanted.text
    assert f"{wanted.stats.tokens_per_forward:.2f} tokens per forward" in note
    assert window.text("#per-forward") == f"{wanted.stats.tokens_per_forward:.2f}"
    origins = set(
        window.run(
            "return [...document.querySelectorAll('.answer .token')].map((one) =>"
            " one.className.slice(8))"
        )
    )
    assert origins <= {"target", "prompt", "output"}
    assert len(origins) > 1
    assert window.run("return document.querySelectorAll('#legend li').length") == len(origins)
    status = " ".join(window.text("#status").split())
    assert " ".join(wanted.text.split())[-20:] in status
    assert status.endswith(note)
    assert not window.errors()


@needs_browser
@pytest.mark.browser
def test_a_token_opens_the_tree_of_its_step(open_server: Served, window: Browser) -> None:
    """Use only the keyboard to open and close the draft tree of a token."""
    window.run("document.querySelector('.answer .text').focus()")
    for _ in range(window.run(f"return {GUESSED}") + 1):
        window.press(RIGHT)
    window.press(ENTER)
    assert "accepted" in window.text("#step .summary")
    assert window.run("return document.querySelectorAll('#step .f-accepted').length") > 0
    shown = window.text("#step-title")
    window.click("#later")
    assert window.text("#step-title") == f"Step {int(shown.split()[1]) + 1}"
    window.press(ESCAPE)
    assert window.text("#step-title") == "Draft tree"
    assert window.run("return document.activeElement.classList.contains('token')")
    assert not window.errors()


@needs_browser
@pytest.mark.browser
def test_text_stays_text(open_server: Served, window: Browser) -> None:
    """Text of a conversation never becomes markup or scripts of the page."""
    window.click("#new")
    ask(
        window,
        '<img src=x onerror="window.bad = 1"><script>window.bad = 2</script> <b>one</b> <b>one</b>',
        16,
    )
    assert (
        window.run("return document.querySelectorAll('#log img, #log script, #log b').length") == 0
    )
    assert "<img src=x" in window.text(".question .text")
    assert not window.run("return window.bad")
    assert not window.errors()


@needs_browser
@pytest.mark.browser
def test_a_stopped_conversation_continues(open_server: Served, window: Browser) -> None:
    window.click("#new")
    window.run(
        "document.getElementById('length').value = 1500; document.getElementById('drafter').value"
        " = 'none'"
    )
    stories, note = 0, ""
    while "stopped" not in note and stories < 4:  # a story may end before the key is pressed
        stories += 1
        window.type("#question", "Tell me a long story.")
        window.press(ENTER)
        window.wait("document.querySelectorAll('.answer:last-of-type .token').length > 3")
        assert window.run(
            "return document.querySelector('.answer .o-prompt, .answer .o-output') === null"
        )
        window.press(ESCAPE)
        note = str(window.wait(_NOTE))
    assert "stopped" in note
    assert open_server.open_work() == 0
    assert "tokens" in ask(window, "And then?", 8)
    assert window.run("return document.querySelectorAll('.answer').length") == stories + 1


@needs_browser
@pytest.mark.browser
def test_errors_are_explained_in_words(server: Served, window: Browser) -> None:
    """First there is no key, then the key is typed."""
    window.open(server.url)
    window.wait(_OPTIONS)
    window.type("#question", QUESTION)
    window.press(ENTER)
    assert "API key is missing" in str(
        window.wait("document.querySelector('[role=alert]')?.textContent")
    )
    assert window.run("return document.activeElement.id") == "key"
    assert window.run("return document.getElementById('question').value") == QUESTION
    window.type("#key", KEY)
    window.run("document.getElementById('question').value = ''")
    assert "tokens" in ask(window, QUESTION, 8)


@needs_browser
@pytest.mark.browser
def test_the_operator_page(open_server: Served, window: Browser) -> None:
    window.open(f"{open_server.url}/operator")
    window.wait("document.querySelectorAll('#origins tr').length > 1")
    found = window.run("return document.querySelector('main').textContent")
    assert "tokens per second" in found
    assert "Target" in found
    assert window.text("#state") == ""
    window.look(390, 844, dark=True)
    window.wait("document.documentElement.dataset.theme === 'dark'")
    assert window.run("return document.documentElement.scrollWidth") == 390
    window.click("#theme")
    assert window.run("return document.documentElement.dataset.theme") == "light"
    assert not window.errors()

#!/usr/bin/env python3
"""Make the pictures of docs/guides/server.md.

The script starts a server with SmolLM2, holds a conversation in headless Chromium, and saves the
page as PNG. The figures in the pictures depend on the machine. The script needs chromium,
chromedriver and the model's wheel.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from paceline import LLM  # noqa: E402
from tests.support.browser import ENTER, ESCAPE, Browser, browser  # noqa: E402
from tests.support.serving import served  # noqa: E402

IMAGES = ROOT / "docs" / "img"
QUESTIONS = (
    "Correct the spelling of this text and repeat all of it: The town of Arvel had no libary until"
    " a retired bus driver parked his old vehicle beside the market and filled it with books from"
    " his own shelves. On the first morning four people came.",
    "Write a short Python class for a bank account with deposit and withdraw, each with a check of"
    " the amount.",
)
LENGTH = 200  # tokens of an answer
_ENDED = "(document.querySelectorAll('.answer')[arguments[0]]?.querySelector('.note').textContent)"


def ask(window: Browser, question: str, place: int) -> None:
    window.type("#question", question)
    window.press(ENTER)
    window.wait(_ENDED.replace("arguments[0]", str(place)), 600)


def most_accepted(window: Browser) -> None:
    """Choose a token from a step of the last answer with about seven accepted draft tokens."""
    window.run("""
        const tokens = [...document.querySelectorAll('.answer:last-of-type .token')], sizes = {};
        for (const token of tokens) {
          const drafted = !token.classList.contains('o-target');
          sizes[token.dataset.step] = (sizes[token.dataset.step] ?? 0) + drafted;
        }
        const distance = (step) => Math.abs(sizes[step] - 7);
        const step = Object.keys(sizes).sort((a, b) => distance(a) - distance(b))[0];
        tokens.find((one) => one.dataset.step === step).click();
        const log = document.getElementById('log');
        log.style.scrollBehavior = 'auto';
        document.querySelector('.token[aria-current]').scrollIntoView({ block: 'center' });
    """)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    llm = LLM("smollm2", "auto", batch_invariant=False, keep_prefixes=8)
    with (
        tempfile.TemporaryDirectory() as profile,
        served(llm, (), served_name=("smollm2",)) as one,
        browser(Path(profile)) as window,
    ):
        window.look(1280, 800)
        window.open(one.url)
        window.wait("document.getElementById('drafter').options.length")
        window.run("document.getElementById('length').value = arguments[0]", LENGTH)
        for place, question in enumerate(QUESTIONS):
            ask(window, question, place)
        most_accepted(window)
        shots = {
            "chat-light": (1280, 800, False),
            "chat-dark": (1280, 800, True),
            "chat-phone": (390, 800, False),
        }
        for name, look in shots.items():
            window.look(*look)
            if name.endswith("phone"):
                window.press(ESCAPE)
            time.sleep(0.5)
            window.picture(IMAGES / f"{name}.png")
        window.look(1280, 1060)
        window.open(f"{one.url}/operator")
        window.wait("document.querySelectorAll('#curve svg, #reliability svg').length > 1")
        time.sleep(2.5)
        window.picture(IMAGES / "operator.png")
        assert not window.errors()
    for path in IMAGES.glob("*.png"):
        print(path.name, path.stat().st_size // 1024, "KiB")


if __name__ == "__main__":
    main()

"""Define constants of the commands, and the settings of the demo."""

from __future__ import annotations

from dataclasses import dataclass

from paceline import demo as embedded
from paceline.bench.settings import ASSISTANT, LOOKUP, PLAIN

MAX_BATCH = 8  # Number of prompts that `generate` answers together, as in `LLM`.
HEADING_CHARACTERS = 60  # Number of prompt characters in the heading of its answer.
LOG_WIDTH = 150  # Width in columns of a table written to a file or a pipe.
MAX_NAMED_RECORDS = 10  # Maximum number of invalid datastore records to list.
WARM_UP_TOKENS = 4  # Tokens that a server generates before its first request.


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of the demo for one model.

    Attributes:
        drafters: Drafter specs. An empty tuple means all drafters that need neither another model
            nor data.
        tokens: Maximum numbers of tokens per answer, in the equality check and in the speed test.
        every: The equality check uses every n-th built-in prompt, where n is this number.
        seconds: Time limits for the equality check and the speed test, in seconds. A prompt that
            has started is always completed.
        remark: Note that is printed above the results of the speed test.
        streaming: Drafter that generates the streamed answer.
        green: Text that explains what the green tokens are.
        answer: Maximum length of the streamed answer, in tokens.
    """

    model: str
    drafters: tuple[str, ...]
    baselines: tuple[str, ...]
    cost_scale: str | None
    tokens: tuple[int, int]
    every: int
    batch: int
    seconds: tuple[float, float]
    remark: str
    streaming: str
    green: str
    answer: int


SMALL_DEMO = DemoSettings(
    embedded.NAME,
    (
        "none",
        "prompt_lookup",
        "sssd:datastore=demo,max_nodes=16",
        "lookahead",
        "draft_model",
        "specdec_pp",
        "ouroboros",
    ),
    (PLAIN, LOOKUP, ASSISTANT),
    "1024x12",
    tokens=(48, 48),
    every=1,
    batch=8,
    seconds=(0.0, 90.0),
    remark=(
        "The built-in target is small, so it is padded to about 150 M parameters. A forward pass"
        " then costs as much as in a model of that size, but the answers do not change. In"
        " bfloat16, either of two tokens with nearly equal logits may be chosen."
    ),
    streaming="draft_model",
    green="drafted by the draft model, accepted by the target",
    answer=64,
)
REAL_DEMO = DemoSettings(
    embedded.SMOLLM2,
    (),
    (PLAIN, LOOKUP),
    None,
    tokens=(24, 48),
    every=3,
    batch=4,
    seconds=(30.0, 60.0),
    remark=(
        "SmolLM2-135M-Instruct without a second model: every drafter uses only earlier text and"
        " hidden states. In bfloat16, a token may differ from transformers' where two logits are"
        " nearly equal."
    ),
    streaming="auto",
    green="drafted, then accepted by the model",
    answer=192,
)

"""Record what an acceptance head learns from (SpecDec++, Section 3.3): answers of the target, and drafted tokens beside them.

For every prompt the target answers: X. The draft reads prompt and X; at every position i it draws one token Y_i from the
distribution it will draw from in use, and P_i = min(1, target/draft) is the chance that Y_i is accepted. The features are the
draft's hidden states on a mixed sequence Z, which keeps X_i with probability `keep` and has Y_i otherwise; only the latter
positions are recorded. Unlike the public code, both distributions are warped as in use (temperature, top_k, top_p, min_p).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from paceline import demo
from paceline.acceptance_card import draft_identity
from paceline.bench.prompts import encode, load_prompts
from paceline.config import require_range
from paceline.errors import CapacityError, ConfigError, UnsupportedModelError
from paceline.head.recording import Recording, RecordingFolder, read_recording
from paceline.llm import LLM
from paceline.loading import load_model
from paceline.sampling import target_scores
from paceline.sequence import SamplingParams, Sequence
from paceline.tree import EMPTY_TREE

_LEAST_ROOM = 8  # context tokens for a prompt
_JUDGED = ("log_probs", "entropies", "labels", "top_probs")


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What is recorded.

    Attributes:
        model, draft_model: directories or hub ids; "demo" is the embedded pair.
        out: the folder; one that was interrupted is gone on with.
        prompts: JSONL files as `paceline bench` takes them; none = the embedded prompts.
        limit, every: of each file, as in a bench. skip_every: leave out each n-th line of each file; 0 = none.
        keep: chance that a position keeps the target's token (the paper's r); nearer to 1, features are more like those in use.
        mixtures: mixed sequences per answer; the paper's one leaves few drafted positions where `keep` is high.
        batch: prompts answered together, and per shard. The other attributes are as in `SamplingParams`.
    Raises:
        ConfigError: a value outside its range.
    """

    model: str = demo.NAME
    draft_model: str | None = None
    out: str | Path = "recording"
    prompts: tuple[str | Path, ...] = ()
    limit: int = 0
    every: int = 1
    skip_every: int = 0
    keep: float = 0.15
    mixtures: int = 1
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    batch: int = 8
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        require_range("head record", "batch", self.batch, 1)
        require_range("head record", "mixtures", self.mixtures, 1)
        require_range("head record", "skip_every", self.skip_every, 0)
        if not 0 <= self.keep < 1:
            raise ConfigError(f"head record: keep is {self.keep}; allowed is from 0 to below 1.")
        self.sampling(0)

    def sampling(self, prompt: int) -> SamplingParams:
        """How prompt number `prompt` is answered."""
        return SamplingParams(
            self.max_new_tokens, self.temperature, self.top_k, self.top_p, self.min_p, seed=self.seed + prompt
        )  # fmt: skip


def record(
    config: RecordConfig, target: PreTrainedModel | None = None, draft: PreTrainedModel | None = None, tokenizer: Any = None,
    progress: bool = False,
) -> Recording:  # fmt: skip
    """Record, or go on with an interrupted recording; models that are given are not loaded.

    Raises:
        ConfigError: models or prompts that cannot be used, or a folder that was begun otherwise.
    """
    target, draft = _models(config, target, draft)
    llm = LLM(target, "draft_model", draft, tokenizer or str(demo.target_of(config.model)), max_batch=config.batch)
    prompts = _prompts(config, llm, draft)
    starts = range(0, len(prompts), config.batch)
    folder = RecordingFolder(config.out, _settings(config, target, draft, len(starts)), prompts)
    columns = (TextColumn("recording"), BarColumn(), MofNCompleteColumn(), TextColumn("batches"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress) as bar:
        for batch, start in enumerate(bar.track(starts)):
            if not folder.has(batch):
                group = range(start, min(start + config.batch, len(prompts)))
                folder.write(batch, _record_batch(config, llm, target, draft, prompts, group))
    return read_recording(config.out)


def _record_batch(
    config: RecordConfig, llm: LLM, target: PreTrainedModel, draft: PreTrainedModel, prompts: list[list[int]], group: range
) -> dict[str, Tensor]:
    asked = [prompts[place] for place in group]
    params = [config.sampling(place) for place in group]
    answers = [completion.token_ids for completion in llm.generate(asked, params)]
    generator = torch.Generator().manual_seed((config.seed << 32) + group[0])
    with torch.inference_mode():
        places = teacher_force(target, draft, asked, answers, params[0], config.keep, config.mixtures, generator)
    hidden_size = draft_identity(draft)[1]
    return {
        **places, "hidden": places["hidden"][:, :hidden_size].to(torch.bfloat16), "prompts": places["prompts"] + group[0],
    }  # fmt: skip


def teacher_force(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Seq[list[int]], answers: Seq[list[int]], params: SamplingParams,
    keep: float, mixtures: int, generator: torch.Generator,
) -> dict[str, Tensor]:  # fmt: skip
    """Draft one token beside each token of the answers, and see how the target likes it.

    Args:
        prompts, answers: token ids of each, at least one. params: how draft and target choose their tokens.
        keep, mixtures: as in `RecordConfig`. generator: of the drafted tokens and of the mixtures, on the CPU.
    Returns:
        tensors as in `Recording`, on the CPU; "prompts" counts from 0.
    """
    starts = [len(prompt) - 1 for prompt in prompts]  # where the first token of each answer is predicted
    count = max(map(len, answers))
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    logits = [run_from(model, texts, starts, count)[0].cpu() for model in (draft, target)]
    judged = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        seqs = [Sequence(prompt, params)]
        scores = [target_scores(one[row, : len(answer)][None], seqs, [EMPTY_TREE])[0] for one in logits]
        judged.append(_judge(scores[0], scores[1], params.greedy, generator))
    columns: dict[str, list[Tensor]] = {name: [] for name in ("hidden", "prompts", *_JUDGED)}
    for _ in range(mixtures):
        kept = [torch.rand(len(answer), generator=generator) < keep for answer in answers]
        mixed = [
            prompt + torch.where(keeps, torch.tensor(answer), drawn).tolist()
            for prompt, answer, keeps, (drawn, *_) in zip(prompts, answers, kept, judged, strict=True)
        ]
        hidden = run_from(draft, mixed, [start + 1 for start in starts], count)[1].cpu()
        for row, (keeps, (drawn, *values)) in enumerate(zip(kept, judged, strict=True)):
            places = (hidden[row, : len(drawn)], torch.full_like(drawn, row, dtype=torch.int32), *values)
            for column, place in zip(columns.values(), places, strict=True):
                column.append(place[~keeps])
    return {name: torch.cat(values) for name, values in columns.items()}


def _judge(draft_scores: Tensor, scores: Tensor, greedy: bool, generator: torch.Generator) -> list[Tensor]:
    """A token drawn from each row of the draft's scores [n, vocab], and what the target's scores say of it.

    Returns:
        [n] each: token ids, log-probabilities, entropies, labels, top probabilities.
    """
    draft_log_probs = draft_scores.log_softmax(-1)
    draft_probs = draft_log_probs.exp()
    drawn = draft_scores.argmax(-1) if greedy else torch.multinomial(draft_probs, 1, generator=generator)[:, 0]
    log_probs = draft_log_probs.gather(-1, drawn[:, None])[:, 0]
    if greedy:
        labels = (scores.argmax(-1) == drawn).float()
    else:
        labels = (scores.log_softmax(-1).gather(-1, drawn[:, None])[:, 0] - log_probs).clamp(max=0).exp()
    return [drawn, log_probs, torch.special.entr(draft_probs).sum(-1), labels, draft_probs.amax(-1)]


def run_from(model: PreTrainedModel, texts: Seq[list[int]], starts: Seq[int], count: int) -> tuple[Tensor, Tensor]:
    """One plain forward over `texts`; the LM head runs on `count` positions of each, from its start on (the last one repeats).

    Returns:
        logits [batch, count, vocab] and what the LM head was fed, [batch, count, hidden].
    Raises:
        UnsupportedModelError: the model has no LM head of its own.
    """
    lm_head = model.get_output_embeddings()
    if lm_head is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no LM head whose input could be recorded; use another model.")
    longest, device = max(map(len, texts)), model.device
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=device)
    columns = (torch.tensor(starts, device=device)[:, None] + torch.arange(count, device=device)).clamp_(max=longest - 1)
    seen: list[Tensor] = []

    def pick(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        seen.append(inputs[0].take_along_dim(columns[:, :, None], dim=1))
        return seen[0]

    hook = lm_head.register_forward_pre_hook(pick)
    try:
        logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    finally:
        hook.remove()
    return logits, seen[0]


def _models(
    config: RecordConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None
) -> tuple[PreTrainedModel, PreTrainedModel]:
    wanted = demo.draft_name(config.model, config.draft_model)
    if draft is None and wanted is None:
        raise ConfigError("head record: there is no draft model to record; pass draft_model=DIRECTORY (--draft-model).")
    if target is None:
        target = load_model(demo.target_of(config.model), config.dtype, config.device)
    if draft is None:
        draft = load_model(demo.draft_of(str(wanted)), config.dtype, str(target.device))
    return target, draft


def _prompts(config: RecordConfig, llm: LLM, draft: PreTrainedModel) -> list[list[int]]:
    """Token ids of the prompts; one too long for either context keeps its beginning and its end."""
    files = config.prompts or (demo.PROMPTS,)
    chosen = []
    for path in files:
        left_out = {prompt.id for prompt in load_prompts([path], every=config.skip_every)} if config.skip_every else set()
        chosen += [prompt for prompt in load_prompts([path], config.limit, config.every) if prompt.id not in left_out]
    if not chosen:
        raise ConfigError(f"head record: skip_every={config.skip_every} leaves no prompt; leave out fewer.")
    context = min(llm.max_length, getattr(draft.config.get_text_config(decoder=True), "max_position_embeddings", llm.max_length))
    room = context - config.max_new_tokens
    if room < _LEAST_ROOM:
        raise CapacityError(
            f"head record: max_new_tokens is {config.max_new_tokens} and the context {context} tokens, which leaves {room} for"
            f" prompts; at least {_LEAST_ROOM} are needed. Reduce max_new_tokens."
        )
    return sorted((encode(prompt, llm.tokenizer, room) for prompt in chosen), key=len)  # little padding


def _settings(config: RecordConfig, target: PreTrainedModel, draft: PreTrainedModel, batches: int) -> dict[str, Any]:
    """What makes one recording differ from another."""
    fingerprint, hidden_size = draft_identity(draft)
    names = ("keep", "mixtures", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "batch")
    return {
        "target": config.model, "draft": config.draft_model or config.model,
        "files": [Path(path).name for path in config.prompts],
        "target_fingerprint": draft_identity(target)[0], "draft_fingerprint": fingerprint, "hidden_size": hidden_size,
        "vocab_size": int(draft.config.get_text_config(decoder=True).vocab_size),
        "dtype": str(target.dtype).removeprefix("torch."), "batches": batches,
        **{name: getattr(config, name) for name in names},
    }  # fmt: skip

"""Test drafters of other packages, given as entry points or as `module:Class`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.bench import BenchConfig, run_bench
from paceline.cli.options import split_specs
from paceline.drafters import REGISTRY, available, create, entry
from paceline.errors import ConfigError
from paceline.integrations.transformers import Strategy
from paceline.replay import replay
from paceline.util.config import split_spec
from paceline.util.options import PromptOptions
from tests.support.commands import run_command
from tests.support.shared import Pair

MODULE = '''
"""A module with one drafter, and with classes that are none."""

from dataclasses import dataclass

from paceline import Drafter, DraftTree


@dataclass(frozen=True)
class RepeatOptions:
    """How often."""

    times: int = 2


class Repeat(Drafter):
    """Guesses that the newest token comes again."""

    name = "repeat"
    Options = RepeatOptions

    def __init__(self, times):
        self.times = times

    @classmethod
    def build(cls, options):
        return cls(options.times)

    def propose(self, seqs, max_nodes):
        return [
            DraftTree.chain([seq.token_ids[-1]] * min(self.times, limit))
            for seq, limit in zip(seqs, max_nodes)
        ]


class Needy(Repeat):
    """Wants a draft model."""

    needs_draft_model = True

    @classmethod
    def build(cls, options, draft_model):
        return cls(draft_model.vocab_size)


class NoDrafter:
    """Not even a Drafter."""


class Silent(Drafter):
    """Proposes nothing."""


class Unoptioned(Drafter):
    """Has no Options."""

    def propose(self, seqs, max_nodes):
        return []


class Unbuilt(Unoptioned):
    """Has no build."""

    Options = RepeatOptions


class Elsewhere(Repeat):
    """Builds something else."""

    @classmethod
    def build(cls, options):
        return options


number = 3
'''


def install(folder: Path, package: str, **points: str) -> None:
    """Write the site-packages metadata of an installed package with these entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[paceline.drafters]", *lines]) + "\n")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the module `outside_drafters` on the path, with packages that declare drafters."""
    (tmp_path / "outside_drafters.py").write_text(MODULE)
    (tmp_path / "broken_drafters.py").write_text("raise RuntimeError('out of order')\n")
    install(
        tmp_path,
        "one",
        repeat="outside_drafters:Repeat",
        broken="broken_drafters:Any",
        none="outside_drafters:Repeat",
    )
    install(
        tmp_path,
        "two",
        twice="outside_drafters:Repeat",
        crooked="no colon at all",
        missing="outside_drafters:Gone",
    )
    install(tmp_path, "three", twice="outside_drafters:Needy")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "outside_drafters", raising=False)
    return tmp_path


SPECS = ["repeat", "repeat:times=3", "outside_drafters:Repeat", "outside_drafters:Repeat:times=3"]


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("spec", SPECS)
def test_outside_drafter_works_everywhere(pair: Pair, spec: str) -> None:
    params = SamplingParams(max_new_tokens=24)
    assert (
        LLM(pair.target, spec).generate([pair.prompts[1]], params)[0].token_ids
        == pair.answers[1][:24]
    )
    ids = torch.tensor([pair.prompts[1]])
    out = pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=24,
        do_sample=False,
        custom_generate=Strategy(spec),
    )
    assert out[0, ids.shape[1] :].tolist() == pair.answers[1][:24]
    assert replay(create(spec), [([1, 2], [2, 2, 2, 2, 5, 6])]).accepted == 3
    sampling, prompts = SamplingParams(max_new_tokens=8), PromptOptions(limit=1)
    config = BenchConfig(drafters=("none", spec), selection=prompts, sampling=sampling, warmup=0)
    figures = {one.method: one for one in run_bench(config, progress=False).figures()}
    assert figures[spec].equal == figures[spec].compared == 1


@pytest.mark.usefixtures("outside")
def test_listing_names_imports_nothing() -> None:
    names = available()
    assert names[-5:] == ["broken", "crooked", "missing", "repeat", "twice"]
    assert len(names) == len(set(names))
    assert (
        entry("none").target == "paceline.drafters.none:NoDrafter"
    )  # packages cannot override our names
    assert "outside_drafters" not in sys.modules
    assert entry("repeat").describe() == "Guesses that the newest token comes again."
    assert not entry("repeat").needs_draft_model
    assert entry("outside_drafters:Needy").needs_draft_model


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "broken",
            r"drafter 'broken': got 'broken_drafters:Any' of package one, .*RuntimeError: out of"
            r" order",
        ),
        (
            "crooked",
            r"drafter 'crooked': got 'no colon at all' of package two, which cannot be imported",
        ),
        (
            "missing",
            r"drafter 'missing': got 'outside_drafters:Gone' of package two, .*no attribute 'Gone'",
        ),
        (
            "twice",
            "'twice': got 'outside_drafters:.*' of package .* and 'outside_drafters:.*' of package"
            " .*; expected one",
        ),
        ("repaet", "there is no drafter 'repaet'; .*Did you mean 'repeat'"),
        ("repeat:time=3", "no option 'time'. Did you mean 'times'"),
        ("repeat:times", "got 'times' for its options; .*Write key=value"),
        (
            "no_such_module:Repeat",
            r"which cannot be imported \(ModuleNotFoundError.*choose another of: none,",
        ),
        (":Repeat", "got ':Repeat', which cannot be imported"),
        ("outside_drafters:NoDrafter", "which is not a subclass of paceline.Drafter; expected"),
        ("outside_drafters:number", "which is not a subclass of paceline.Drafter; expected"),
        ("outside_drafters:Silent", "which does not define propose; expected"),
        ("outside_drafters:Unoptioned", "which has no dataclass named Options; expected"),
        ("outside_drafters:Unbuilt", "which has no class method build; expected"),
        ("outside_drafters:Needy", "needs a draft model. Pass draft_model=DIR"),
        (
            "outside_drafters:Elsewhere",
            r"got a RepeatOptions from Elsewhere.build; expected a Drafter",
        ),
    ],
)
def test_broken_drafters_are_refused_by_name(pair: Pair, spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(spec)
    with pytest.raises(ConfigError, match=words):
        LLM(pair.target, spec)


@pytest.mark.usefixtures("outside")
def test_draft_model_is_passed_to_outside_drafters(pair: Pair) -> None:
    spec = "outside_drafters:Needy"
    (out,) = LLM(pair.target, spec, draft_model=pair.draft).generate(
        [pair.prompts[1]], SamplingParams(max_new_tokens=8)
    )
    assert out.token_ids == pair.answers[1][:8]


def test_command_lists_valid_and_broken_drafters(outside: Path) -> None:
    done = run_command("paceline", "drafters", folder=outside)
    assert done.returncode == 0, done.stderr
    assert "Guesses that the newest token comes again." in done.stdout
    assert "times=2" in done.stdout
    assert "out of order" in done.stdout


def test_specs_split_into_name_and_options() -> None:
    assert split_spec("rest:datastore=/a:b/c,max_draft_tokens=3") == (
        "rest",
        "datastore=/a:b/c,max_draft_tokens=3",
    )
    assert split_spec("my.module:Inner.Class:store=a:b") == ("my.module:Inner.Class", "store=a:b")
    assert split_spec(" none ") == ("none", "")
    specs = [
        "none,my.module:Class:length=2,width=3,other:Class,sssd:datastore=demo,max_nodes=4",
        "none",
    ]
    assert split_specs(specs) == [
        "none",
        "my.module:Class:length=2,width=3",
        "other:Class",
        "sssd:datastore=demo,max_nodes=4",
        "none",
    ]
    assert split_specs(["none,aut,sssd"]) == ["none", "aut", "sssd"]
    assert split_specs(["none,my-drafter:a=1,b=2"]) == ["none", "my-drafter:a=1,b=2"]


@pytest.mark.parametrize("name", REGISTRY)
def test_registry_matches_the_classes(name: str) -> None:
    found, cls = REGISTRY[name], REGISTRY[name].load()
    assert found.options() is cls.Options
    assert (found.needs_draft_model, found.needs_trained, found.needs_store) == (
        cls.needs_draft_model,
        cls.needs_trained,
        cls.needs_store,
    )
    assert cls.__dict__["keeps_tokens"]  # checked by test_contract.py, in a class that wraps `cls`

"""Tables of the Results page, each from one or several summaries in docs/results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmark_data import (
    BATCHES,
    DRAFTERS,
    MACHINES,
    PLAIN,
    all_names,
    caption,
    figures,
    load,
    machines_of,
    markdown,
    over,
    read,
    shell,
    shown,
)

from paceline.report.tables import Column, Table


def setup() -> str:
    """Return the machines of the runs."""
    rows = []
    for suffix, name in MACHINES.items():
        run = load(f"smollm2-batch1-bf16-{suffix}")
        environment = run["environment"]
        versions = environment["versions"]
        rows.append(
            (
                name,
                environment["processor"],
                f"{environment['cores']}",
                versions["torch"],
                versions["transformers"],
                environment["date"][:10],
            )
        )
    columns = ("machine", "processor", "logical cores", "torch", "transformers", "measured")
    return markdown(Table.of("", [Column(name, left=True) for name in columns], rows))


def auto_by_machine() -> str:
    """Return the speed of `auto` and its identical answers on each machine."""
    columns = [
        Column("machine", left=True),
        *(Column(f"speed, batch size {batch}", ".2f") for batch in BATCHES),
        Column("answers identical to plain decoding"),
        Column("speed relative to transformers, batch size 1", ".2f"),
    ]
    rows = []
    for suffix, machine in MACHINES.items():
        names = [f"smollm2-batch{batch}-bf16-{suffix}" for batch in BATCHES]
        compared = [
            figures(name, "auto")
            for name in [*names, f"smollm2-nodes-bf16-{suffix}"]
            if load(name).get("reference") == PLAIN and figures(name, "auto")
        ]
        equal, of = (sum(run[count] for run in compared) for count in ("equal", "compared"))
        rows.append(
            (
                machine,
                *(over(name, "auto") for name in names),
                f"{equal} of {of}",
                over(names[0], "auto", "transformers"),
            )
        )
    names = [f"smollm2-batch{batch}-bf16-{suffix}" for batch in BATCHES for suffix in MACHINES]
    return markdown(Table.of("", columns, rows)) + caption(names)


def single_requests() -> str:
    """Return the speed of each drafter over plain decoding on each machine."""
    pattern = "smollm2-batch1-bf16-{}"
    methods = [*DRAFTERS, "auto:datastore=store", "sssd:datastore=store"]
    return _by_machine(pattern, "drafter", methods, lambda name, method: over(name, method))


def over_transformers() -> str:
    """Return the speed of plain decoding, `auto` and transformers' own drafting."""
    pattern = "smollm2-batch1-bf16-{}"
    methods = ["transformers:prompt_lookup", PLAIN, "auto"]
    return _by_machine(
        pattern,
        "method",
        methods,
        lambda name, method: over(name, method, "transformers"),
        [suffix for suffix in MACHINES if figures(pattern.format(suffix), "transformers")],
    )


def per_forward() -> str:
    """Return the tokens per forward pass of each drafter."""
    return _by_machine(
        "smollm2-batch1-bf16-{}",
        "drafter",
        [*DRAFTERS, "auto:datastore=store", "sssd:datastore=store"],
        lambda name, method: figures(name, method).get("tokens_per_forward"),
    )


def batches() -> str:
    """Return the speed of drafters over plain decoding by machine and batch size."""
    methods = [name for name in DRAFTERS if name != "token_recycling"]
    rows = [
        (
            machine,
            shown(method),
            *(over(f"smollm2-batch{batch}-bf16-{suffix}", method) for batch in BATCHES),
        )
        for suffix, machine in MACHINES.items()
        for method in methods
    ]
    columns = [
        Column("machine", left=True),
        Column("drafter", left=True),
        *(Column(f"batch {batch}", ".2f") for batch in BATCHES),
    ]
    names = [f"smollm2-batch{batch}-bf16-{suffix}" for batch in BATCHES for suffix in MACHINES]
    return markdown(Table.of("", columns, rows)) + caption(names)


def texts() -> str:
    """Return the speed over plain decoding by kind of text."""
    pattern, methods = "smollm2-batch1-bf16-{}", ("auto", "prompt_lookup")
    suffixes = ("amx", "dots-two-cores")
    columns = [Column("text", left=True)]
    columns += [
        Column(f"{method}, {MACHINES[suffix]}", ".2f") for suffix in suffixes for method in methods
    ]
    rows = [
        (
            category.replace("_", " "),
            *(
                over(pattern.format(suffix), method, category=category)
                for suffix in suffixes
                for method in methods
            ),
        )
        for category in load(pattern.format("amx"))["summary"]["categories"]
    ]
    names = [pattern.format(suffix) for suffix in suffixes]
    return markdown(Table.of("", columns, rows)) + caption(names)


def contexts() -> str:
    """Return the speed over plain decoding by the length of the prompt."""
    suffixes = machines_of("smollm2-contexts-bf16-{}")
    rows = [
        (
            machine,
            category.removeprefix("context "),
            *(
                over(f"smollm2-contexts-bf16-{suffix}", method, category=category)
                for method in DRAFTERS[:4]
            ),
        )
        for suffix, machine in suffixes.items()
        for category in load(f"smollm2-contexts-bf16-{suffix}")["summary"]["categories"]
    ]
    columns = [
        Column("machine", left=True),
        Column("prompt tokens"),
        *(Column(method, ".2f") for method in DRAFTERS[:4]),
    ]
    names = [f"smollm2-contexts-bf16-{suffix}" for suffix in suffixes]
    return markdown(Table.of("", columns, rows)) + caption(names)


def sampled() -> str:
    """Return the speed over plain decoding at a temperature."""
    return _by_machine("smollm2-sampled-bf16-{}", "drafter", DRAFTERS[:4], over)


def random_text() -> str:
    """Return the speed on prompts of random tokens, where drafting cannot help much."""
    rows = []
    for suffix, machine in MACHINES.items():
        names = [f"smollm2-random{batch}-bf16-{suffix}" for batch in ("", "8", "32")]
        if any(map(load, names)):
            rows += [
                (machine, shown(method), *(over(name, method) for name in names))
                for method in DRAFTERS[:4]
            ]
    columns = [
        Column("machine", left=True),
        Column("drafter", left=True),
        *(Column(f"batch {batch}", ".2f") for batch in BATCHES),
    ]
    names = [
        f"smollm2-random{batch}-bf16-{suffix}" for suffix in MACHINES for batch in ("", "8", "32")
    ]
    return markdown(Table.of("", columns, rows)) + caption(names)


def draft_models() -> str:
    """Return speed and tokens per forward of drafters with a draft model."""
    return _with_draft("smollm2-draft-1b-bf16-{}")


def draft_model_in_auto() -> str:
    """Return speed and tokens per forward of `auto` with and without a draft model."""
    return _with_draft("smollm2-draft-1b-auto-bf16-{}")


def nodes() -> str:
    """Return the tokens per forward pass of `auto` with a fixed number of nodes."""
    pattern = "smollm2-nodes-bf16-{}"
    methods = dict.fromkeys(
        row["method"]
        for suffix in machines_of(pattern)
        for row in load(pattern.format(suffix))["summary"]["all"]
        if row["method"] != PLAIN
    )
    return _by_machine(
        pattern,
        "drafter",
        [name for name in methods if "max_nodes=16" in name or "max_nodes=64" in name],
        lambda name, method: figures(name, method).get("tokens_per_forward"),
    )


def beside_generate_batch() -> str:
    """Return batch 8 against both ways that transformers has for several prompts."""
    pattern = "smollm2-continuous-bf16-{}"
    methods = ["transformers:generate_batch", PLAIN, "auto"]
    return _by_machine(
        pattern, "method", methods, lambda name, method: over(name, method, "transformers")
    )


def commands() -> str:
    """Return the command of each kept run of `paceline bench`."""
    blocks = []
    for name in all_names():
        run = read(name)
        if "command" in run and "paper" not in run["kind"]:
            blocks.append(f"# {name}\n{shell(run['command'])}")
    return "```sh\n" + "\n\n".join(blocks) + "\n```"


def _with_draft(pattern: str) -> str:
    suffixes = ("amx", "dots")
    names = [pattern.format(suffix) for suffix in suffixes]
    methods = dict.fromkeys(row["method"] for name in names for row in load(name)["summary"]["all"])
    columns = [Column("drafter", left=True)]
    columns += [
        Column(f"{what}, {MACHINES[suffix]}", ".2f")
        for suffix in suffixes
        for what in ("speed", "tokens per pass")
    ]
    rows = [
        (
            shown(method),
            *(
                value
                for name in names
                for value in (
                    over(name, method),
                    figures(name, method).get("tokens_per_forward"),
                )
            ),
        )
        for method in methods
        if method != PLAIN
    ]
    return markdown(Table.of("", columns, rows)) + caption(names)


def _by_machine(
    pattern: str,
    what: str,
    methods: Iterable[str],
    value: Callable[[str, str], float | None],
    suffixes: Iterable[str] | None = None,
) -> str:
    """Return a table with a row for each method and a column for each machine."""
    chosen = list(machines_of(pattern) if suffixes is None else suffixes)
    names = [pattern.format(suffix) for suffix in chosen]
    rows = [
        (shown(method), *(value(name, method) for name in names))
        for method in methods
        if any(figures(name, method) for name in names)
    ]
    columns = [
        Column(what, left=True),
        *(Column(MACHINES[suffix], ".2f", left=False) for suffix in chosen),
    ]
    return markdown(Table.of("", columns, rows)) + caption(names)

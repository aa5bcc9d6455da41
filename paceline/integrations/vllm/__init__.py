"""Retrieval drafting inside vLLM, by its hook for drafters of other packages (docs/vllm.md).

    vllm serve MODEL --speculative-config '{"method": "custom_class", "model":
    "paceline.integrations.vllm.Proposer",
        "num_speculative_tokens": 8}' --additional-config '{"paceline": {"drafter": "sssd"}}'

    proposer   what vLLM calls               requests   which row of its batch is which request, by
    the tokens alone options    what it is told               lengths    how long each draft is:
    what a token costs, what it is likely to bring building   the drafter, its store        drafting
      a step: requests, trees, chains guarded    the drafter's faults          metrics    what
      Prometheus is told

Nothing here imports vLLM.
"""

from paceline.integrations.vllm.proposer import Proposer

__all__ = ["Proposer"]

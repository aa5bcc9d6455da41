"""Draft inside vLLM, through its hook for drafters; see docs/guides/vllm.md.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "model":
        "paceline.integrations.vllm.Proposer", "num_speculative_tokens": 8}'
        --additional-config '{"paceline": {"drafter": "sssd"}}'

vLLM calls `proposer`, which reads `options`, creates the drafter (`building`) and runs the steps
(`drafting`). Each step matches the rows of vLLM's batch to requests by their tokens (`requests`),
and chooses draft lengths by cost (`lengths`). `guarded` isolates drafter errors, and `metrics`
reports to Prometheus. None of these modules imports vLLM.
"""

from paceline.integrations.vllm.proposer import Proposer

__all__ = ["Proposer"]

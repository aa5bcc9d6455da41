"""Draft inside vLLM, through vLLM's hook for drafters; see docs/guides/vllm.md.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "model":
        "paceline.integrations.vllm.Proposer", "num_speculative_tokens": 8}'
        --additional-config '{"paceline": {"drafter": "sssd"}}'

vLLM calls the class in the module `proposer`. The class reads the options (`options`), creates the
drafter (`building`) and runs the steps (`drafting`). Each step uses the tokens in vLLM's batch to
match rows to requests (`requests`), and chooses draft lengths by cost (`lengths`). The module
`guarded` isolates drafter errors, and `metrics` reports to Prometheus. None of these modules
imports vLLM.
"""

from paceline.integrations.vllm.proposer import Proposer

__all__ = ["Proposer"]

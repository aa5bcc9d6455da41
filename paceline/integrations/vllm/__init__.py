"""Draft inside vLLM through its hook for custom drafters; see docs/guides.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "model":
        "paceline.integrations.vllm.Proposer", "num_speculative_tokens": 8}'
        --additional-config '{"paceline": {"drafter": "sssd"}}'

vLLM calls `proposer`. It reads `options`, creates the drafter (`building`) and runs steps
(`drafting`). A step matches rows to requests by their tokens (`requests`) and chooses draft lengths
from costs (`lengths`). `guarded` isolates drafter errors, and `metrics` reports to Prometheus. No
module here imports vLLM.
"""

from paceline.integrations.vllm.proposer import Proposer

__all__ = ["Proposer"]

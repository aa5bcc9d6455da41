"""Compute RMS norms on CUDA with Triton, and all other operations with torch."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from paceline.backend.norm_modules import find_rms_norms
from paceline.backend.torch_backend import TorchBackend
from paceline.cuda.norms import rms_norm, takes_norm
from paceline.cuda.settings import NORM_TOLERANCES


class CudaBackend(TorchBackend):
    """Computes RMS norms with a Triton kernel, and all other operations with torch."""

    rms_norm = staticmethod(rms_norm)

    def rms_norms(self, model: PreTrainedModel) -> dict[nn.Module, float]:
        """Return the epsilon of each norm module that `rms_norm` can replace."""
        return find_rms_norms(model, rms_norm, takes_norm, NORM_TOLERANCES)


CUDA = CudaBackend()

"""Open a GGUF file with llama.cpp."""

from __future__ import annotations

import ctypes
import weakref
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PretrainedConfig

from paceline.errors import ConfigError, UnsupportedModelError
from paceline.llama_cpp.context import BatchRows, Context, ContextOptions
from paceline.llama_cpp.library import Library, load_library
from paceline.llama_cpp.settings import CELL_STEP, MAX_ROLLBACK
from paceline.llama_cpp.structures import RawStructure
from paceline.model.gguf import is_gguf
from paceline.model.gguf_header import files_of

_NO_VOCABULARY = 0


class GgufModel:
    """A GGUF model in llama.cpp, with the attributes that drafters read.

    Args:
        path: The GGUF file, or any one of the files of a split model.
        on_gpu: Whether llama.cpp computes on a GPU, if its build supports one.
    Attributes:
        library: The llama.cpp library.
        name_or_path: The file's path.
        config: transformers configuration, which sets only the name and the vocabulary size.
        generation_config: transformers generation configuration, which sets only the
            end-of-sequence tokens.
        device: Device of the logits.
        dtype: Data type of the logits.
        context_length: Context length with which the model was trained, in tokens.
        window: Size of the sliding window in tokens; 0 if there is none.
        is_recurrent: Whether some or all layers are recurrent.
        description: Description of the architecture, size and format.
    Raises:
        ConfigError: The file is missing, or llama.cpp cannot read it.
        UnsupportedModelError: The model is not a text decoder.
    """

    def __init__(self, path: str | Path, on_gpu: bool = True) -> None:
        self.library: Library = load_library()
        self.name_or_path, library = str(path), self.library
        first = _first_file(path)
        self._handle = library.model_load_from_file(
            str(first).encode(), _model_parameters(library, on_gpu)
        )
        if not self._handle:
            raise ConfigError(
                f"model {str(path)!r}: {library.version} cannot read this file; its errors are"
                " above. Fetch the file again, or update llama.cpp."
            )
        self._free = weakref.finalize(self, library.model_free, self._handle)
        self._vocabulary = library.model_get_vocab(self._handle)
        self._check(path)
        self.on_gpu = on_gpu and bool(library.supports_gpu_offload())
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.vocab_size = int(library.vocab_n_tokens(self._vocabulary))
        self.context_length = int(library.model_n_ctx_train(self._handle))
        self.window = int(library.model_n_swa(self._handle))
        self.is_recurrent = bool(
            library.model_is_recurrent(self._handle) or library.model_is_hybrid(self._handle)
        )
        self.config = PretrainedConfig(name_or_path=self.name_or_path)
        self.config.vocab_size = self.vocab_size
        self.generation_config = GenerationConfig(eos_token_id=self.end_ids)

    def _check(self, path: str | Path) -> None:
        library = self.library
        if library.model_has_encoder(self._handle):
            raise UnsupportedModelError(
                f"model {str(path)!r}: got an encoder-decoder; expected a decoder. Choose another"
                " model."
            )
        if library.vocab_type(self._vocabulary) == _NO_VOCABULARY:
            raise UnsupportedModelError(
                f"model {str(path)!r}: the file has no vocabulary. Convert the model again with its"
                " tokenizer."
            )

    @cached_property
    def end_ids(self) -> list[int]:
        """Return the ids of the tokens at which llama.cpp ends an answer."""
        ids = range(self.vocab_size)
        return [id for id in ids if self.library.vocab_is_eog(self._vocabulary, id)]

    @cached_property
    def description(self) -> str:
        """Return a description of the architecture, size and format."""
        buffer = ctypes.create_string_buffer(256)
        self.library.model_desc(self._handle, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    @cached_property
    def max_rollback(self) -> int:
        """Return the number of tokens by which recurrent states can be rolled back."""
        options = ContextOptions(CELL_STEP, CELL_STEP, CELL_STEP, 1, 1, MAX_ROLLBACK)
        context = self.new_context(options)
        rollback = context.rollback
        context.free()
        return rollback

    @property
    def token_bytes(self) -> int:
        """Return the size of one token's keys and values in the cache, in bytes."""
        first, second = self._sequence_bytes
        return second - first

    @property
    def state_bytes(self) -> int:
        """Return the size of a sequence's recurrent states and their copies, in bytes."""
        if not self.is_recurrent:
            return 0
        return (self._sequence_bytes[0] - self.token_bytes) * (1 + self.max_rollback)

    @cached_property
    def _sequence_bytes(self) -> tuple[int, int]:
        """Return the sizes, in bytes, of a cached sequence with one token and with two."""
        context = self.new_context(ContextOptions(CELL_STEP, CELL_STEP, CELL_STEP, 1, 1))
        sizes = []
        for position in range(2):
            context.decode(BatchRows([0], [position], [[0]], [False]))
            sizes.append(len(context.read(0)))
        context.free()
        return sizes[0], sizes[1]

    def facts(self) -> dict[str, Any]:
        """Return metadata that identifies the model and library in stored measurements."""
        library, path = self.library, Path(self.library.path)
        numbers = {
            name: int(getattr(library, f"model_{name}")(self._handle))
            for name in ("n_params", "size", "n_embd", "n_layer")
        }
        build = [library.version, path.stat().st_size, path.stat().st_mtime_ns]
        return {"model": [self.description, self.vocab_size, numbers], "build": build}

    def new_context(self, options: ContextOptions) -> Context:
        """Create a context with a cache of fixed size.

        Raises:
            MemoryError: There is not enough memory.
        """
        return Context(self.library, self._handle, self.vocab_size, options)

    def forward(self, input_ids: Any) -> None:
        """Reject drafters that run the target themselves.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError(
            "llama.cpp runs the target in an engine only; expected a drafter that does not run it."
            " Choose another drafter."
        )

    def get_input_embeddings(self) -> None:
        """Reject drafters that read the target's weights.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError(
            "llama.cpp does not give access to a model's embeddings and hidden states; expected a"
            " drafter that needs neither. Choose another draft model, or \0engine='transformers'\0."
        )


def _first_file(path: str | Path) -> Path:
    if not isinstance(path, str | Path) or not is_gguf(path):
        raise ConfigError(
            f"model: got {str(path)!r} with \0engine='llama.cpp'\0; expected a GGUF file. Convert"
            " the model, or leave the engine out."
        )
    if not Path(path).is_file():
        raise ConfigError(f"model: there is no GGUF file at {str(path)!r}. Correct the path.")
    return files_of(Path(path))[0]


def _model_parameters(library: Library, on_gpu: bool) -> RawStructure:
    raw: RawStructure = library.model_default_params()
    if not on_gpu and library.supports_gpu_offload():
        ctypes.c_int32.from_buffer(raw, 2 * ctypes.sizeof(ctypes.c_void_p)).value = 0
    return raw

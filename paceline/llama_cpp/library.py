"""Find and load a llama.cpp library, and declare its functions."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, UnsupportedModelError, install_command
from paceline.llama_cpp.settings import ERROR_LEVEL
from paceline.llama_cpp.structures import Batch, Fields, RawStructure, find_layout

_PATTERNS = {
    "xllamacpp": ("xllamacpp*.so", "xllamacpp*.pyd"),
    "llama_cpp": ("lib/libllama.so", "lib/libllama.dylib", "lib/llama.dll"),
}
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)

_CONTEXT, _MODEL, _MEMORY, _VOCABULARY = c_void_p, c_void_p, c_void_p, c_void_p
# Types of the result and the arguments of each function, by name without the prefix "llama_".
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "backend_init": (None, []),
    "log_set": (None, [_LOG, c_void_p]),
    "context_default_params": (RawStructure, []),
    "model_default_params": (RawStructure, []),
    "model_load_from_file": (_MODEL, [c_char_p, RawStructure]),
    "model_free": (None, [_MODEL]),
    "init_from_model": (_CONTEXT, [_MODEL, RawStructure]),
    "free": (None, [_CONTEXT]),
    "decode": (c_int32, [_CONTEXT, Batch]),
    "get_logits": (POINTER(c_float), [_CONTEXT]),
    "get_memory": (_MEMORY, [_CONTEXT]),
    "memory_clear": (None, [_MEMORY, c_bool]),
    "memory_seq_cp": (None, [_MEMORY, c_int32, c_int32, c_int32, c_int32]),
    "memory_seq_rm": (c_bool, [_MEMORY, c_int32, c_int32, c_int32]),
    "memory_seq_pos_min": (c_int32, [_MEMORY, c_int32]),
    "memory_seq_pos_max": (c_int32, [_MEMORY, c_int32]),
    "state_seq_get_size": (c_size_t, [_CONTEXT, c_int32]),
    "state_seq_get_data": (c_size_t, [_CONTEXT, c_void_p, c_size_t, c_int32]),
    "state_seq_set_data": (c_size_t, [_CONTEXT, c_void_p, c_size_t, c_int32]),
    "n_ctx": (c_uint32, [_CONTEXT]),
    "n_batch": (c_uint32, [_CONTEXT]),
    "n_ubatch": (c_uint32, [_CONTEXT]),
    "n_seq_max": (c_uint32, [_CONTEXT]),
    "n_threads": (c_int32, [_CONTEXT]),
    "n_threads_batch": (c_int32, [_CONTEXT]),
    "model_get_vocab": (_VOCABULARY, [_MODEL]),
    "model_n_ctx_train": (c_int32, [_MODEL]),
    "model_n_embd": (c_int32, [_MODEL]),
    "model_n_layer": (c_int32, [_MODEL]),
    "model_n_swa": (c_int32, [_MODEL]),
    "model_n_params": (ctypes.c_uint64, [_MODEL]),
    "model_size": (ctypes.c_uint64, [_MODEL]),
    "model_is_recurrent": (c_bool, [_MODEL]),
    "model_is_hybrid": (c_bool, [_MODEL]),
    "model_has_encoder": (c_bool, [_MODEL]),
    "model_desc": (c_int32, [_MODEL, c_char_p, c_size_t]),
    "model_meta_val_str": (c_int32, [_MODEL, c_char_p, c_char_p, c_size_t]),
    "model_chat_template": (c_char_p, [_MODEL, c_char_p]),
    "supports_gpu_offload": (c_bool, []),
    "vocab_n_tokens": (c_int32, [_VOCABULARY]),
    "vocab_type": (c_int32, [_VOCABULARY]),
    "vocab_is_eog": (c_bool, [_VOCABULARY, c_int32]),
}


class Library:
    """A loaded llama.cpp library.

    Args:
        path: File of the library.
    Attributes:
        path: File of the library.
        version: Version of the package that contains the library.
        context_fields: Layout of the library's context parameters.
    Raises:
        UnsupportedModelError: The library lacks a function, or its structures have an unknown
            layout.
    """

    def __init__(self, path: Path, version: str) -> None:
        self.path, self.version = path, version
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(self._library, f"llama_{name}")
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise UnsupportedModelError(
                f"llama.cpp at {str(path)!r} cannot be used: {error}. Install the extra again:"
                f" {install_command('llama-cpp')}."
            ) from error
        self._log = _LOG(_show_errors)  # kept alive as long as the library may call it
        self.log_set(self._log, None)
        self.backend_init()
        self.context_fields: Fields = find_layout(
            bytes(self.context_default_params().bytes), version
        )

    def max_rollback(self, context: int) -> int:
        """Return by how many tokens a recurrent sequence can be rolled back.

        The result is 0 for older builds of llama.cpp.

        Args:
            context: Handle of the llama.cpp context.
        """
        function = getattr(self._library, "llama_n_rs_seq", None)
        if function is None:
            return 0
        function.restype, function.argtypes = c_uint32, [_CONTEXT]
        return int(function(context))

    def __getattr__(self, name: str) -> Any:
        """Return the library's function `llama_NAME` as the attribute NAME."""
        return getattr(self._library, f"llama_{name}")


def _show_errors(level: int, text: bytes, data: object) -> None:
    if level == ERROR_LEVEL:
        sys.stderr.write(text.decode(errors="replace"))


@cache
def load_library() -> Library:
    """Return the llama.cpp library of the first installed package that has one.

    Raises:
        ConfigError: No package with a llama.cpp library is installed.
        UnsupportedModelError: The library lacks a function, or its structures have an unknown
            layout.
    """
    for package, path in _library_files():
        return Library(path, _version_of(package))
    raise ConfigError(
        "\0engine\0: 'llama.cpp' needs the package xllamacpp or llama-cpp-python, and neither is"
        f" installed. Run: {install_command('llama-cpp')}."
    )


def _library_files() -> Iterator[tuple[str, Path]]:
    for package, patterns in _PATTERNS.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for pattern in patterns:
                yield from ((package, path) for path in sorted(Path(folder).glob(pattern)))


def _version_of(package: str) -> str:
    distribution = {"llama_cpp": "llama-cpp-python"}.get(package, package)
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return distribution

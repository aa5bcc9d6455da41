"""Test the reader of tensor lists in GGUF headers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig

from paceline.model.gguf_directory import copy_header, header_digest, list_tensors
from tests.support.gguf import write_gguf
from tests.support.gguf_rope import add_llama3

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "IQ4_XS"])
def test_tensors_are_those_of_the_gguf_package(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tensors.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_key_value("nested", [[1, 2], [3]], gguf.GGUFValueType.ARRAY)
    block_format = gguf.GGMLQuantizationType[kind]
    for number, shape in enumerate(((3, 256), (2, 5, 512), (256,))):
        row_bytes = gguf.quants.quant_shape_to_byte_shape(shape, block_format)
        content = np.full(row_bytes, number, np.uint8)
        writer.add_tensor(f"tensor.{number}", content, raw_dtype=block_format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    listed, begin = list_tensors(path)
    reader = gguf.GGUFReader(path)
    assert begin == reader.data_offset
    assert [tuple(tensor) for tensor in listed] == [
        (
            tensor.name,
            [int(size) for size in reversed(tensor.shape)],
            int(tensor.tensor_type),
            int(tensor.data_offset),
            int(tensor.n_bytes),
        )
        for tensor in reader.tensors
    ]


def test_damaged_headers_raise_errors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    content = path.read_bytes()
    for size in (12, 100, 700):
        path.write_bytes(content[:size])
        with pytest.raises((struct.error, IndexError, ValueError)):
            list_tensors(path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_the_copy_of_a_header_has_the_same_configuration(tmp_path: Path, kind: str) -> None:
    path, copy = write_gguf(tmp_path / "tiny.gguf", kind), tmp_path / "copy.gguf"
    copy_header(path, copy)
    assert copy.stat().st_size < path.stat().st_size / 4
    configs = [AutoConfig.from_pretrained(tmp_path, gguf_file=file.name) for file in (path, copy)]
    assert configs[0].to_dict() == configs[1].to_dict()


def test_the_digest_covers_the_header_and_the_rotary_factors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", rope=add_llama3)
    content, digest = path.read_bytes(), header_digest(path)
    tensors = {tensor.name: tensor.offset for tensor in list_tensors(path)[0]}
    name, factors, weight = (
        content.index(b"tiny"),
        tensors["rope_freqs.weight"],
        tensors["output.weight"],
    )
    for offset, is_covered in ((name, True), (factors, True), (weight, False)):
        changed = bytearray(content)
        changed[offset] ^= 1
        path.write_bytes(changed)
        assert (header_digest(path) != digest) == is_covered

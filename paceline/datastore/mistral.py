"""The 32k tokenizer inside the package mistral-common: a real vocabulary without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import ConfigError

MISTRAL = "mistral-common"  # stands for it where a tokenizer is asked for
_FILE = "tokenizer.model.v1"  # 32,000 ids


class MistralTokenizer:
    """Do what stores and replays need of a transformers tokenizer.

    Raises:
        ConfigError: the packages are not installed.
    """

    def __init__(self) -> None:
        try:
            import mistral_common
            from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

            self._inner = SentencePieceTokenizer(
                str(Path(mistral_common.__file__).parent / "data" / _FILE)
            )
        except ImportError as error:
            raise ConfigError(
                f"tokenizer {MISTRAL!r}: got an environment without its packages; expected"
                " mistral-common with sentencepiece. Install them: pip install 'paceline[replay]'"
            ) from error

    def __call__(
        self, texts: str | list[str], *, add_special_tokens: bool = False
    ) -> dict[str, Any]:
        """Return {"input_ids": ids} of a text, or of each text of a list; with the first token
        <s> if `add_special_tokens`.
        """
        if isinstance(texts, str):
            return {"input_ids": list(self._inner.encode(texts, bos=add_special_tokens, eos=False))}
        return {
            "input_ids": [
                list(self._inner.encode(text, bos=add_special_tokens, eos=False)) for text in texts
            ]
        }

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        return {token: number for number, token in enumerate(self._inner.vocab())}

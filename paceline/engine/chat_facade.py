"""Add the methods for conversations to an engine that answers prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.core.sampling_params import SamplingParams
from paceline.engine.completion import Completion
from paceline.engine.facade import EngineFacade

if TYPE_CHECKING:
    from paceline.media.processor import MediaProcessor
    from paceline.parsing.tools import ToolDefinition


class ChatFacade(EngineFacade):
    """Renders conversations as prompts, and parses the answers to them.

    Attributes:
        tokenizer: Tokenizer of the model, or None.
        eos_token_ids: Tokens that end an answer.
    """

    tokenizer: Any
    eos_token_ids: list[int]
    _media: MediaProcessor

    def generate(
        self, prompts: Any, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Generate the answers to all prompts; `LLM.generate` describes the arguments."""
        raise NotImplementedError

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[ToolDefinition] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
    ) -> Completion:
        """Generate the assistant's next message in a conversation.

        `Completion.message` contains the reasoning and the tool calls. The docstrings of
        `chat_prompt` and `generate` describe the errors and the other arguments.

        Args:
            messages: Conversation. Its roles are passed to the chat template unchecked; see
                `chat_prompt`.
            tool_choice: With "auto", the model decides whether to call a tool. With "required" or
                {"type": "function", "function": {"name": NAME}}, the answer is a call with valid
                arguments. With "none", the model does not see the tools.
        """
        from paceline.engine.chat import ChatPlan

        ids = self.chat_prompt(
            messages,
            chat_template_kwargs,
            tools=None if tool_choice == "none" else tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        plan = ChatPlan.of(self.tokenizer, ids, self.eos_token_ids, tools, tool_choice)
        (completion,) = self.generate([ids], plan.params(params))
        return plan.with_messages(completion, params)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[ToolDefinition] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        local_files: bool = True,
    ) -> list[int]:
        """Return the token ids of a conversation, for `generate` and `stream`.

        Args:
            messages: Each message has a `role` and `content`, which is a string or a list of
                parts. A text part is {"type": "text", "text": ...}. An image part is {"type":
                "image", "image": IMAGE}, where IMAGE is a Pillow image, a path, bytes or a data
                URL. OpenAI's {"type": "image_url", "image_url": {"url": "data:..."}} also works.
                `content` may be None in an assistant message with `tool_calls`. The role and all
                other fields are passed to the chat template unchecked. The template may accept an
                unknown role, such as a misspelt one.
            chat_template_kwargs: Variables for the chat template, under the names that the
                template uses, such as {"enable_thinking": False}. `add_generation_prompt` and
                `continue_final_message` may also be passed here.
            tools: Tool definitions in OpenAI's format, or Python functions with type hints and
                docstrings.
            add_generation_prompt: Whether the template starts the assistant's turn. Default: True,
                or False with `continue_final_message`.
            continue_final_message: End the prompt with the text of the final message, which must
                be the assistant's; the answer continues that text. Default: False.
            local_files: Whether image parts may be file paths or objects. With False, only data
                URLs are accepted, as required on a server. Default: True.
        Returns:
            Token ids; an `EncodedPrompt` if the messages contain images, videos or audio.
        Raises:
            ConfigError: The messages or an image cannot be used, there is no tokenizer, the
                tokenizer has no chat template, or the template rejects the conversation.
        """
        from paceline.media.conversations import conversation_prompt
        from paceline.parsing.tools import tool_use

        endings = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        return conversation_prompt(
            self._media,
            self.tokenizer,
            messages,
            chat_template_kwargs,
            endings,
            local_files,
            tool_use(tools).definitions,
        )

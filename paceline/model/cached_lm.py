"""Add a KV cache with one slot per request to a transformers model.

Targets and draft models are both instances of `CachedLM`.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from paceline.backend.model_products import fastest_products
from paceline.backend.products import Products
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.settings import PREFILL_CHUNK, FixedShapes
from paceline.core.tree import EMPTY_TREE
from paceline.errors import ConfigError
from paceline.kv_cache.region_cache import RegionCache
from paceline.kv_cache.settings import GRAPH_GROWTH_POSITIONS, GRAPH_POOL_GROWTH_POSITIONS
from paceline.model.architecture import Architecture
from paceline.model.eagle.modules import uses_target_states
from paceline.model.fixed_shapes.runner import fixed_shape_runner, reads_regions
from paceline.model.forward_mode import in_forward_mode, mode_of
from paceline.model.forward_passes import ForwardPasses
from paceline.model.media_prefill import MediaPrefill
from paceline.model.model_runner import ModelRunner
from paceline.model.model_view import ModelView
from paceline.model.reduced_vocabulary import kept_ids
from paceline.model.token_map import TokenMap
from paceline.model.vocabulary import SharedVocabulary
from paceline.util.environment_key import environment_key


class CachedLM(ForwardPasses):
    """A transformers model whose KV cache is divided into slots.

    Args:
        model: Decoder-only model in eval mode, on its device.
        prefill_chunk: Maximum number of pending tokens per request in one forward pass. It may be
            changed between forward passes.
        batch_invariant: Whether the attention of each token must depend, bit for bit, only on the
            text up to that token. Default False.
        min_rows: Minimum number of rows in a forward pass and in its LM head; smaller batches are
            padded. Default 1.
        products: Implementation of matrix products and norms; None selects the fastest one on this
            machine.
        chains: Whether to verify only chains (draft trees without branches), even if the model's
            `forward` method accepts masks. Default False.
        fixed_shapes: Whether to pad decode steps to a few fixed shapes, so that CUDA can replay
            them as captured graphs. "auto" pads on CUDA only; recurrent models are never padded.
    Attributes:
        prefill_chunk: Maximum number of pending tokens per request in one forward pass.
        min_rows: Minimum number of rows in a forward pass and in its LM head.
        products: Implementation of matrix products and norms.
        chains: Whether to verify only chains, even if the model accepts masks.
        architecture: Properties of the model.
        mode: Function that returns the context manager in which forward passes run.
        media_prefill: Object that computes prompts with images, videos or audio.
        slots: Cache slots and their requests.
        uses_target_states: True for a draft model that reads its target's hidden states
            (`Request.states`).
        kept_ids: Token ids of the reduced vocabulary that the target also has, in ascending order;
            None if the vocabulary is not reduced.
    Raises:
        UnsupportedModelError, ConfigError: The model cannot be verified losslessly, or the
            requested batch invariance is not possible (`Architecture.from_model`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prefill_chunk: int = PREFILL_CHUNK,
        batch_invariant: bool = False,
        min_rows: int = 1,
        products: Products | None = None,
        chains: bool = False,
        fixed_shapes: FixedShapes = "auto",
    ) -> None:
        architecture = Architecture.from_model(model, batch_invariant, chains)
        in_graphs = model.device.type == "cuda" and fixed_shapes is not False
        growth_step = None
        if reads_regions(model, architecture, fixed_shapes):
            growth_step = GRAPH_POOL_GROWTH_POSITIONS if in_graphs else 1
        super().__init__(model, architecture, growth_step)
        self.prefill_chunk = prefill_chunk
        self.min_rows = min_rows
        self.products = fastest_products(model) if products is None else products
        self._model, self.chains = model, chains
        self._fixed_shapes = fixed_shapes
        self._runner = ModelRunner(
            ModelView(model, self.products),
            self.device,
            self.architecture,
            self._cache,
            self.products,
        )
        self._use_fixed_shapes()
        self.media_prefill = MediaPrefill(model, self.architecture.states)
        self.mode = mode_of(model)
        self.uses_target_states = uses_target_states(model)
        self.kept_ids = kept_ids(model)
        self._vocabulary: SharedVocabulary | TokenMap | None = None

    def _use_fixed_shapes(self) -> None:
        """Set up decode passes with fixed shapes, if the options allow them."""
        on_cuda = self.device.type == "cuda"
        if self._fixed_shapes is True or (self._fixed_shapes == "auto" and on_cuda):
            self._runner.fixed_shapes = fixed_shape_runner(
                self._model,
                self._runner.view,
                self.architecture,
                self._cache,
                self.products.fixed_rows,
            )

    @property
    def model(self) -> PreTrainedModel:
        """Return the wrapped transformers model."""
        return self._model

    @property
    def forward_seconds(self) -> float:
        """Return the total time that the device has spent in the model, in seconds."""
        return self._runner.timer.seconds

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids that the logits cover."""
        return (
            self.architecture.vocab_size
            if self._vocabulary is None
            else self._vocabulary.target_rows
        )

    def share(self, vocabulary: SharedVocabulary | TokenMap) -> None:
        """Make this draft model return logits for a target's vocabulary.

        Args:
            vocabulary: Tokens that this draft model and the target share.
        Raises:
            ConfigError: The draft model already serves a target with a different vocabulary.
        """
        if self._vocabulary is not None and self._vocabulary.target_rows != vocabulary.target_rows:
            raise ConfigError(
                f"draft model: got a target with {vocabulary.target_rows} rows in its LM head,"
                f" although it already serves a target with {self._vocabulary.target_rows};"
                " expected the same number. Load the draft model again for the new target."
            )
        self._vocabulary = self._runner.vocabulary = vocabulary
        reduced = kept_ids(self._model)
        self.kept_ids = None if reduced is None else vocabulary.reduced(reduced)

    @property
    def shared_rate(self) -> float:
        """Return the fraction of the target's tokens that this draft model also has."""
        return 1.0 if self._vocabulary is None else self._vocabulary.shared_rate

    @property
    def stale(self) -> bool:
        """Return True if modules have been replaced since a request was last opened."""
        return self._runner.view.stale

    @property
    def device(self) -> torch.device:
        """Return the device of token ids and logits."""
        device: torch.device = self._model.device
        return device

    def apart(self) -> CachedLM:
        """Return a second `CachedLM` with its own cache, for measurements and checks."""
        options = (
            self.prefill_chunk,
            self.architecture.by_position,
            self.min_rows,
            self.products,
        )
        return CachedLM(self._model, *options, self.chains, self._fixed_shapes)

    def cost_key(self, max_rows: int) -> str:
        """Return a checksum of everything on which the cost of forward passes depends.

        Args:
            max_rows: Maximum number of rows in the timed forward passes.
        """
        products = self.products
        return environment_key(
            self._model,
            batch_invariant=self.architecture.by_position,
            rows=[self.min_rows, max_rows],
            products=[len(products.modules), products.min_rows, products.max_rows],
            helpers=products.num_helpers(1),
        )

    @property
    def growth_step(self) -> int:
        """Return the number of cache positions by which to grow the cache.

        Every allocation invalidates all captured graphs, so a cache with graphs grows in large
        steps.
        """
        if isinstance(self._cache, RegionCache):
            return self._cache.growth_step
        return GRAPH_GROWTH_POSITIONS if self.has_graphs else 1

    @property
    def has_graphs(self) -> bool:
        """Return True if decode steps run as CUDA graphs."""
        return self._runner.fixed_shapes is not None and self.device.type == "cuda"

    def preallocate(self, slots: int, positions: int, limit: int) -> None:
        """Prepare the cache for its maximum size, so that later growth copies no data.

        On a GPU, this method runs a forward pass on one token, because memory can be allocated only
        once the shapes and dtypes of keys and values are known.

        Args:
            slots: Maximum number of slots.
            positions: Maximum number of cache positions per slot.
            limit: Maximum number of cache positions in all slots together.
        """
        self._cache.preallocate(slots, positions, limit)
        if self.device.type == "cuda" and not self._cache.allocated.slots:
            request = Request([0], SamplingParams())
            self.open(request)
            self.feed([request])
            self.close(request)

    def open(self, request: Request, slot_of: Request | None = None, length: int = 0) -> None:
        """Assign a cache slot to a request.

        Args:
            request: Request to process.
            slot_of: Finished request whose slot is reused; None selects an empty slot.
            length: Number of leading cache positions of `slot_of` to reuse.
        Raises:
            CapacityError: The request is longer than the context.
        """
        self.check_length(request)
        if self.stale:
            self._runner.view = ModelView(self._model, self.products)
            self._use_fixed_shapes()
        elif self._runner.fixed_shapes is not None:
            self._runner.fixed_shapes.check_weights()
        if slot_of is None:
            self.slots.take(request)
        else:
            self.slots.inherit(request, slot_of, length)

    def undo(self, request: Request, length: int) -> None:
        """Undo a failed step: keep only a request's first `length` cached tokens.

        If this drops images, videos or audio, the method processes them again.
        """
        self.rewind(request, length)
        self.clear_after(request)
        if request.media is not None and request.cached < request.media.end:
            self.prefill_media(request)

    @in_forward_mode
    def prefill_media(self, request: Request) -> None:
        """Prefill an open request up to its last image, video or audio clip.

        For the first request with a combination of media kinds, also check the logits after the
        media. They must match the logits of the model's own forward pass.

        Args:
            request: Open request with media and an empty slot.
        Raises:
            ConfigError: The model rejects the images, videos or audio.
            UnsupportedModelError: Decoding after these inputs would not be lossless.
        """
        media = request.media
        assert media is not None, "called for requests with media"
        states = self.media_prefill.states(request)
        for layer, pair in enumerate(states.layers):
            if pair is not None:
                self.load(request, layer, 0, *pair)
        for layer, recurrent in states.recurrent.items():
            self.load_states(request, layer, recurrent)
        request.cached, request.position_offset = media.end, states.position_offset
        if states.recurrent:
            self.slots.checkpoints.save(request)
        if self.media_prefill.needs_check(media, states):
            probe = Request(request.token_ids[: media.end + 1], SamplingParams())
            probe.slot, probe.cached = request.slot, media.end
            probe.position_offset = states.position_offset
            logits = self.forward([probe], [EMPTY_TREE])
            self.media_prefill.check_next_token(request, states, logits[0, 0])

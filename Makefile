# make demo: set up and run the main job on SmolLM2, else on the embedded models.   make test: set up and run all checks.
# make test-all: slow and hostile ones, too (the latter alone: .venv/bin/python -m pytest -m hostile).
# make test-lowest: the tests named in SMOKE with the lowest versions that pyproject.toml allows.
# make test-newest: all tests with the newest versions there are, in an environment made anew (torch as pip gives it: 5 GB).
# make test-vllm: our drafters in vLLM's engine, in an environment of its own (3.5 GB, minutes).
# make docs: the site, into site/.   make package: wheel and sdist, into dist/, tried in an environment of their own.
PYTHON ?= python3
VENV := .venv
VENV_VLLM := .venv-vllm
VENV_LOWEST := .venv-lowest
VENV_NEWEST := .venv-newest
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := paceline/__pycache__/.compiled
KERNELS := $(shell grep -rl 'util.compiled import' paceline --include='*.py')
GGUF_KINDS := tests/model/test_gguf_architectures.py
# Every drafter, the drop-in for transformers, the server, GGUF files; recurrent layers, experts, refused models.
SMOKE := tests/test_lossless.py::test_greedy_equals_generate tests/integrations/test_equality.py \
         tests/serve/test_openai_client.py tests/model/test_gguf.py \
         $(GGUF_KINDS)::test_converted_weights_equal_those_of_transformers \
         $(GGUF_KINDS)::test_drafts_do_not_change_answers_of_packed_experts \
         tests/engine/test_recurrent.py tests/model/test_recurrence_mixers.py \
         tests/model/test_window_mixer.py tests/model/test_layer_states.py \
         tests/invariance/test_experts.py tests/cpu/test_norms.py \
         tests/model/test_architectures.py::test_models_that_cannot_be_rolled_back_are_refused
# What Python has compiled is kept: with this set, every process would compile torch and transformers for itself.
unexport PYTHONDONTWRITEBYTECODE
# This checkout, whatever other one the caller's path names.
export PYTHONPATH := $(CURDIR)

.PHONY: demo test test-all test-lowest test-newest test-vllm lint docs package clean
.PHONY: lint-types lint-style lint-imports lint-words

$(STAMP): pyproject.toml constraints.txt scripts/install scripts/smollm2.txt
	scripts/install $(PYTHON) $(VENV) constraints.txt dev
	touch $@

# Compiled code is stored beside its source. This file is as old as the last time all of it was compiled.
$(COMPILED): $(STAMP) $(KERNELS)
	@$(BIN)/python scripts/compile_kernels.py
	@touch $@

demo: $(STAMP)
	@$(MAKE) --no-print-directory $(COMPILED) & $(BIN)/paceline demo; status=$$?; wait; exit $$status

test: $(STAMP)
	@$(MAKE) --no-print-directory $(COMPILED) & compiling=$$!; $(MAKE) --no-print-directory lint && wait $$compiling
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-all: lint
	$(BIN)/python -m pytest -m "not gpu"

$(VENV_LOWEST)/.installed: pyproject.toml constraints-lowest.txt scripts/install scripts/smollm2.txt
	scripts/install $(PYTHON) $(VENV_LOWEST) constraints-lowest.txt test
	touch $@

# Another version of numba would replace what the main environment has compiled beside the source.
test-lowest: export NUMBA_CACHE_DIR := $(CURDIR)/$(VENV_LOWEST)/compiled
test-lowest: $(VENV_LOWEST)/.installed
	$(VENV_LOWEST)/bin/python scripts/compile_kernels.py
	$(VENV_LOWEST)/bin/python -m pytest --numprocesses 2 --dist loadfile $(SMOKE)

test-newest: export NUMBA_CACHE_DIR := $(CURDIR)/$(VENV_NEWEST)/compiled
test-newest:
	rm -rf $(VENV_NEWEST)
	scripts/install $(PYTHON) $(VENV_NEWEST) /dev/null test
	$(VENV_NEWEST)/bin/python scripts/compile_kernels.py
	$(VENV_NEWEST)/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

$(VENV_VLLM)/.installed: pyproject.toml scripts/install_vllm
	scripts/install_vllm $(PYTHON) $(VENV_VLLM)
	touch $@

test-vllm: $(VENV_VLLM)/.installed
	$(VENV_VLLM)/bin/python -m pytest -m vllm -W default tests/integrations/vllm_engine

lint: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint-types lint-style lint-imports lint-words

lint-types:
	$(BIN)/mypy

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-imports:
	$(BIN)/lint-imports

lint-words:
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/check_prose.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(STAMP)
	scripts/package $(BIN)/python dist

clean:
	rm -rf $(VENV) $(VENV_LOWEST) $(VENV_NEWEST) $(VENV_VLLM) demo-output bench-output site dist build paceline.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

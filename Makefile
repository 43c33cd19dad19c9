# make demo   set up, then answer a prompt with the embedded pair
# make test   set up, then run all tests
# make check  format, lint, types, layering and the fast tests
# make docs   write the option tables of the README anew

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRA  := $(if $(filter Linux,$(shell uname)),cpu,)
COMMA  := ,
RUN_EXTRAS := $(if $(EXTRA),[$(EXTRA)],)
DEV_EXTRAS := [$(if $(EXTRA),$(EXTRA)$(COMMA),)dev,oracle]

.PHONY: help demo test check docs clean
help:
	@sed -n 's/^# //p' Makefile

$(VENV)/run.stamp: pyproject.toml
	@echo "== setting up $(VENV): pip install -e '.$(RUN_EXTRAS)'"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check -e '.$(RUN_EXTRAS)'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/run.stamp
	@echo "== adding the test tools: pip install -e '.$(DEV_EXTRAS)' (torch included: a large download)"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.$(DEV_EXTRAS)'
	@touch $@

demo: $(VENV)/run.stamp
	@echo "== mlx-dspark generate, the embedded pair, up to 7 drafts a round"
	@$(BIN)/mlx-dspark generate --max-draft 7 --no-thinking \
		--prompt "There are 3 tickets in each jar. How many tickets are there in 6 jars?"

test: $(VENV)/dev.stamp
	@echo "== all tests, two at a time"
	@$(BIN)/pytest -n 2 tests

check: $(VENV)/dev.stamp
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n 2 -m "not slow" tests

docs: $(VENV)/dev.stamp
	@$(BIN)/python -m mlx_dspark.cli.docs README.md

clean:
	rm -rf $(VENV) build dist

#!/bin/sh
# The agents that test_agents.py drives, at the versions it was last run with: install_agents.sh FOLDER
# Then: MLX_DSPARK_AGENTS=FOLDER/node_modules/.bin pytest tests/clients
set -eu
npm install --prefix "$1" --no-fund --no-audit @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.332
cd "$1/node_modules/@anthropic-ai/claude-code" && node install.cjs

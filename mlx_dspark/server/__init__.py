"""OpenAI and Anthropic clients over HTTP. Knows the engine and what lies below; the engine knows nothing of it."""

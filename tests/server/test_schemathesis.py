"""The served description against the server: what it calls valid is answered, what it rules out is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


@pytest.mark.slow
def test_no_route_disagrees_with_its_description(serve) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import schemathesis
        from hypothesis import HealthCheck, Phase, given, settings

        live = serve(max_tokens=8)
        described: Any = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
        checked = 0
        for result in described.get_all_operations():
            operation = result.ok()
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                if mode is schemathesis.GenerationMode.NEGATIVE and operation.method.upper() == "GET":
                    continue
                cases = operation.as_strategy(generation_mode=mode)

                @given(case=cases)
                @settings(
                    max_examples=40,
                    deadline=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                    database=None,
                    derandomize=True,
                )
                def run(case: Any) -> None:
                    nonlocal checked
                    checked += 1
                    case.call_and_validate(timeout=60)

                run()
        assert checked > 200
    live.idle()

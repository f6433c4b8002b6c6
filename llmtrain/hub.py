"""Whether the Hugging Face hub can be reached, asked before a library asks it.

Without a network, the libraries repeat each request for 20 to 50 seconds before they give up. One short request first
makes a name that cannot be fetched an error within seconds.
"""

from __future__ import annotations

import huggingface_hub
from huggingface_hub import constants

from llmtrain.errors import HubUnreachableError, Problem

PROBE_TIMEOUT_SECONDS = 5.0


def why_hub_is_unreachable() -> str | None:
    """None where the hub answers; else why it does not. Takes at most `PROBE_TIMEOUT_SECONDS` (plus a name look-up)."""
    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    try:
        huggingface_hub.get_session().head(constants.ENDPOINT, timeout=PROBE_TIMEOUT_SECONDS)
    except Exception as error:  # noqa: BLE001  (whatever the client raises: the hub was not reached)
        return f"{constants.ENDPOINT} does not answer: {error or type(error).__name__}"
    return None


def hub_unreachable_error(path: str, value: str, why: str, remedy: str) -> HubUnreachableError:
    """The error for `value`, a name on the hub that the key `path` gives; `remedy` names the local alternatives."""
    rule = f"is not in the local cache, and the Hugging Face hub was not reached ({why})"
    return HubUnreachableError(Problem(path, rule, remedy, value=value))

"""The settings of offline push: a part of `settings.Settings`, in a file of their own for their number.

One switch for all roles: `notification_providers`. Where it is empty nobody may register, the mailbox stages
make no tasks, and `qim up` starts no notification role. Credentials are files that only this role reads.

Spec: §6.
"""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

PROVIDERS = ("apns", "fcm", "webhook")


def _setting(default: Any, description: str, **bounds: Any) -> Any:
    return Field(
        default=default, description=description, json_schema_extra={"section": "notification"}, **bounds
    )


class NotificationSettings(BaseSettings):
    """Fields of `Settings`; not used by itself."""

    notification_providers: str = _setting("", "any of apns, fcm, webhook, comma separated; empty = no push")
    notification_grace_ms: int = _setting(
        2_000, "how long a device may take to reconnect before it is notified", ge=0, le=60_000
    )
    notification_age_max_s: int = _setting(
        3_600, "older messages are not notified any more; also how long providers are retried", ge=10
    )
    notification_ttl_s: int = _setting(
        86_400, "how long a provider keeps a notification for a device that is off", ge=0, le=2_419_200
    )
    notification_waiting_max: int = _setting(
        100_000, "notifications of a provider that wait per partition; more are let go", ge=100
    )
    notification_in_flight_max: int = _setting(
        128, "requests to a provider under way, per worker", ge=1, le=2_000
    )
    notification_timeout_s: float = _setting(10.0, "for one request to a provider", gt=0, le=60)
    notification_repeat_unknown: bool = _setting(
        True, "repeat a request whose end nobody knows (same id); false = rather none than two"
    )
    notification_collapse: str = _setting(
        "message",
        "what a notification replaces on the device: message (its own repeats) or conversation",
        pattern="^(message|conversation)$",
    )
    notification_title: str = _setting("New message", "title of notifications", max_length=200)
    notification_text: str = _setting("You have a new message", "text without a preview", max_length=500)
    notification_preview_chars: int = _setting(
        0, "characters of a message that is text to show; 0 = no text leaves the system", ge=0, le=1_000
    )
    notification_tls_ca_file: Path | None = _setting(
        None, "PEM file of the authorities that providers are checked against; unset = the system's"
    )
    apns_url: str = _setting("https://api.push.apple.com", "APNs host; the sandbox is another one")
    apns_topic: str = _setting("", "APNs topic (bundle id) of devices that name none")
    apns_key_file: Path | None = _setting(None, "PEM file (.p8) with the ES256 key of provider tokens")
    apns_key_id: str = _setting("", "id of that key")
    apns_team_id: str = _setting("", "id of the developer team")
    fcm_url: str = _setting("https://fcm.googleapis.com", "FCM host")
    fcm_credentials_file: Path | None = _setting(None, "JSON file of the service account")
    push_webhook_url: str = _setting("", "address that notifications of provider webhook go to")
    push_webhook_secret_file: Path | None = _setting(None, "file with the key of its signatures")

    @model_validator(mode="after")
    def _providers_are_known(self) -> Self:
        unknown = set(self.push_providers()) - set(PROVIDERS)
        if unknown:
            raise ValueError(
                f"notification_providers: {', '.join(sorted(unknown))}: use {', '.join(PROVIDERS)}"
            )
        return self

    def push_providers(self) -> tuple[str, ...]:
        """The providers that are switched on, each once."""
        named = (one.strip() for one in self.notification_providers.split(","))
        return tuple(dict.fromkeys(one for one in named if one))

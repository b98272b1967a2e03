"""The declared topics: reading ``topics.yaml``, creating what is missing, refusing what differs.

Invariants: topics are declared in that file and nowhere else; a co-partitioned topic has exactly the
partition count of the one it follows, overrides included; nothing existing is ever altered here, since
adding partitions would move keys and deleting a topic would restart its offsets (Spec: §14.2).

Spec: §2, §4.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from qim_streams.errors import ConfigError
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.settings import Settings
from qim_streams.streaming.doubt import EXIT_CONFIG, die

log = logging.getLogger(__name__)

Profile = Literal["dev", "production"]
PARTITIONS_MAX = 4_096
_ADMIN_TIMEOUT_S = 30.0
_SEEN_POLL_S = 0.05
_SILENT = f"the brokers did not answer within {_ADMIN_TIMEOUT_S:.0f} s; are they overloaded?"
_ANSWER_TIMEOUT_S = 10.0  # a broker that is there lists its topics at once
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,199}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfileDefaults(_Strict):
    """What every topic of a profile shares."""

    replication: int = Field(ge=1, le=9)
    min_insync_replicas: int = Field(ge=1, le=9)

    @model_validator(mode="after")
    def _writable(self) -> Self:
        if self.min_insync_replicas > self.replication:
            raise ValueError("min_insync_replicas is above replication: nothing could ever be written")
        return self


class Topic(_Strict):
    """One declared topic. Either `partitions` or `copartition_with` is given, never both."""

    contract: str = Field(min_length=2)
    key: str
    partitioning: str
    partitions: dict[Profile, int] | None = None
    partitions_setting: str | None = None
    room_setting: str | None = None
    copartition_with: str | None = None
    cleanup: Literal["delete", "compact"]
    retention_ms: int | None = Field(default=None, ge=-1)
    producer: str
    consumers: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.partitions is None) == (self.copartition_with is None):
            raise ValueError("give either partitions or copartition_with")
        if self.partitions is not None:
            if set(self.partitions) != {"dev", "production"}:
                raise ValueError("partitions: needs a number for dev and one for production")
            if not all(1 <= count <= PARTITIONS_MAX for count in self.partitions.values()):
                raise ValueError(f"partitions: must be 1 to {PARTITIONS_MAX}")
        if self.partitions_setting is not None:
            if self.partitions is None:
                raise ValueError("partitions_setting: a co-partitioned topic follows its source")
            if self.partitions_setting not in Settings.model_fields:
                raise ValueError(f"partitions_setting: no setting {self.partitions_setting!r}")
        room = self.room_setting
        if room is not None and (self.partitions_setting is None or room not in Settings.model_fields):
            raise ValueError("room_setting: a setting, beside a partitions_setting that it may exceed")
        if (self.cleanup == "delete") != (self.retention_ms is not None):
            raise ValueError("retention_ms: required for cleanup delete, and only there")
        return self


@dataclass(frozen=True, slots=True)
class ResolvedTopic:
    """A topic as it must exist on the broker of one profile."""

    name: str
    partitions: int
    replication: int
    min_insync_replicas: int
    cleanup: str
    retention_ms: int | None

    def config(self) -> dict[str, str]:
        """The topic configuration to create it with."""
        config = {
            "cleanup.policy": self.cleanup,
            "min.insync.replicas": str(self.min_insync_replicas),
            "message.timestamp.type": "CreateTime",
        }
        if self.retention_ms is not None:
            config["retention.ms"] = str(self.retention_ms)
        if self.cleanup == "compact":
            # Small segments, so that a table recovers from its latest values and not from a week of them.
            config |= {"segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.2"}
        return config


class TopicSet(_Strict):
    """All declared topics."""

    version: Literal[1]
    defaults: dict[Profile, ProfileDefaults]
    topics: dict[_Name, Topic]

    @model_validator(mode="after")
    def _references(self) -> Self:
        if set(self.defaults) != {"dev", "production"}:
            raise ValueError("defaults: needs dev and production")
        for name, topic in self.topics.items():
            source = topic.copartition_with
            if source is not None and source not in self.topics:
                raise ValueError(f"topics.{name}.copartition_with: {source!r} is not declared")
            if source is not None and self.topics[source].copartition_with is not None:
                raise ValueError(f"topics.{name}.copartition_with: {source!r} follows another topic itself")
        return self

    def resolve(
        self, profile: Profile, overrides: Mapping[str, int] | None = None
    ) -> dict[str, ResolvedTopic]:
        """What must exist in `profile`; `overrides` maps topic names to partition counts.

        An override of a co-partitioned topic is a ConfigError: move its source instead.
        """
        counts = dict(overrides or {})
        for name, count in counts.items():
            if name not in self.topics:
                raise ConfigError(f"partition override: topic {name!r} is not declared in topics.yaml")
            if self.topics[name].copartition_with is not None:
                raise ConfigError(
                    f"partition override: {name} follows {self.topics[name].copartition_with}; override that"
                )
            if not 1 <= count <= PARTITIONS_MAX:
                raise ConfigError(f"partition override: {name} must have 1 to {PARTITIONS_MAX} partitions")
        return {name: self._resolve(name, profile, counts) for name in self.topics}

    def resolve_for(self, settings: Settings) -> dict[str, ResolvedTopic]:
        """What must exist for these settings: their profile, and the partition counts that settings name.

        The placement of users and conversations uses the settings, so they decide. In production a
        count that nobody set is a ConfigError: the default is meant for one machine.
        """
        profile: Profile = "production" if settings.topic_profile == "production" else "dev"
        overrides = {}
        for name, topic in self.topics.items():
            field = topic.partitions_setting
            if field is None or topic.partitions is None:
                continue
            if profile == "production" and field not in settings.model_fields_set:
                raise ConfigError(
                    f"QIM_{field.upper()}: must be set in production ({name}, "
                    f"{topic.partitions[profile]} recommended); it cannot be changed later"
                )
            room = getattr(settings, topic.room_setting) if topic.room_setting else 0
            overrides[name] = max(int(getattr(settings, field)), int(room))
        return self.resolve(profile, overrides)

    def _resolve(self, name: str, profile: Profile, counts: Mapping[str, int]) -> ResolvedTopic:
        topic, shared = self.topics[name], self.defaults[profile]
        source = topic.copartition_with or name
        declared = self.topics[source].partitions
        assert declared is not None
        return ResolvedTopic(
            name=name,
            partitions=counts.get(source, declared[profile]),
            replication=shared.replication,
            min_insync_replicas=shared.min_insync_replicas,
            cleanup=topic.cleanup,
            retention_ms=topic.retention_ms,
        )


def default_path() -> Path:
    """``topics.yaml`` beside the package."""
    return Path(__file__).resolve().parents[2] / "topics.yaml"


def load(path: Path | None = None) -> TopicSet:
    """The declared topics; ConfigError names file, topic and field of everything that is wrong."""
    path = path or default_path()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); every topic is declared there"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    try:
        return TopicSet.model_validate(document)
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"{path.name}: " + "; ".join(lines)) from None


def admin_client(brokers: Brokers) -> AdminClient:
    """An admin client of the log; it connects on first use."""
    return AdminClient({**access_of(brokers).librdkafka(), "client.id": "qim-topics"}, logger=log)


def apply(admin: AdminClient, topics: Mapping[str, ResolvedTopic]) -> list[str]:
    """Create what is missing and return the names created. Blocking. Existing topics stay as they are.

    Afterwards the log tells of all of them: a broker answers before its own metadata has what was created.
    ConfigError when one cannot be created (with the broker's reason) or is not told of in time. Safe to run
    twice at once.
    """
    existing = _existing(admin)
    wanted = [topic for name, topic in topics.items() if name not in existing]
    if not wanted:
        return []
    requests = [
        NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication,
            config=topic.config(),
        )
        for topic in wanted
    ]
    created = []
    for name, future in admin.create_topics(requests, operation_timeout=_ADMIN_TIMEOUT_S).items():
        try:
            future.result(_ADMIN_TIMEOUT_S)
            created.append(name)
        except TimeoutError as error:
            raise ConfigError(f"topic {name} cannot be created: {_SILENT}") from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise ConfigError(f"topic {name} cannot be created: {error.args[0].str()}") from error
    _wait_seen(admin, wanted)
    return created


def _wait_seen(admin: AdminClient, topics: Sequence[ResolvedTopic]) -> None:
    """Until each has partitions, and these have leaders. ConfigError when that takes too long."""
    deadline_s = time.monotonic() + _ADMIN_TIMEOUT_S
    while True:
        existing = _existing(admin)
        unseen = [one.name for one in topics if not _is_served(existing.get(one.name))]
        if not unseen:
            return
        if time.monotonic() > deadline_s:
            raise ConfigError(
                f"topics were created, but the brokers do not tell of {', '.join(unseen)} yet; "
                "run `qim topics check` in a moment"
            )
        time.sleep(_SEEN_POLL_S)


def _is_served(topic: Any) -> bool:
    """Whether a topic of the metadata has partitions, each with a leader."""
    return (
        topic is not None
        and bool(topic.partitions)
        and all(one.leader >= 0 for one in topic.partitions.values())
    )


def check(admin: AdminClient, topics: Mapping[str, ResolvedTopic]) -> list[str]:
    """Every difference between what exists and what must, one line each; empty when all is well. Blocking.

    ConfigError when the brokers do not say what there is.
    """
    existing = _existing(admin)
    problems = []
    present = []
    for name, topic in topics.items():
        if name not in existing:
            problems.append(f"{name}: does not exist; run `qim topics apply`")
            continue
        present.append(topic)
        count = len(existing[name].partitions)
        if count != topic.partitions:
            problems.append(
                f"{name}: has {count} partitions, declared are {topic.partitions}; "
                "set the partition setting to what exists, or create the stack anew"
            )
    return problems + _check_configs(admin, present)


def _check_configs(admin: AdminClient, topics: Sequence[ResolvedTopic]) -> list[str]:
    if not topics:
        return []
    wanted = {topic.name: topic for topic in topics}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic.name) for topic in topics]
    problems = []
    for resource, future in admin.describe_configs(resources, request_timeout=_ADMIN_TIMEOUT_S).items():
        topic = wanted[resource.name]
        try:
            actual = future.result(_ADMIN_TIMEOUT_S)
        except TimeoutError as error:
            raise ConfigError(f"topic {topic.name} cannot be looked at: {_SILENT}") from error
        except KafkaException as error:
            raise ConfigError(f"topic {topic.name} cannot be looked at: {error.args[0].str()}") from error
        checked = {"cleanup.policy": topic.cleanup, "min.insync.replicas": str(topic.min_insync_replicas)}
        if topic.retention_ms is not None:
            checked["retention.ms"] = str(topic.retention_ms)
        for field, value in checked.items():
            found = actual[field].value if field in actual else None
            # A broker that does not report a field (the in-memory one) cannot contradict it.
            if found is not None and found != value:
                problems.append(
                    f"{topic.name}: {field} is {found}, declared is {value}; "
                    f"run kafka-configs --alter --entity-name {topic.name} --add-config {field}={value}"
                )
    return problems


def _existing(admin: AdminClient) -> dict[str, Any]:
    try:
        return dict(admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics)
    except KafkaException as error:
        raise ConfigError(f"the topics cannot be listed: {error.args[0].str()}; is the broker up?") from error


def ensure_topics_or_exit(
    brokers: Brokers, topics: Mapping[str, ResolvedTopic], names: Sequence[str] | None = None
) -> None:
    """End the process with 1 unless `names` (default: all of `topics`) exist as declared. Blocking.

    Called by a worker before it joins its group: a wrong partition count would silently break
    co-partitioning, a compacted dispatch topic the proof of coverage.
    """
    chosen = topics if names is None else {name: topics[name] for name in names}
    try:
        problems = check(admin_client(brokers), chosen)
    except ConfigError as error:
        die(str(error), code=EXIT_CONFIG)
    if problems:
        die("topics differ from topics.yaml: " + "; ".join(problems), code=EXIT_CONFIG)

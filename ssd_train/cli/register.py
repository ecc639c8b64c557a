"""Make the dataclasses known to Hydra, so that a YAML file is checked against them while it composes."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from ssd_train.config import schema, schema_own_text, schema_speech
from ssd_train.recipes.registry import infos


def register() -> None:
    """Store every schema under the group `schema/`; calling it again changes nothing."""
    store = ConfigStore.instance()
    store.store(group="schema", name="train", node=schema.Root, package="_global_")
    store.store(group="schema/model", name="scratch", node=schema.ScratchModelConfig)
    store.store(group="schema/model", name="scratch_moe", node=schema.ScratchMoeConfig)
    store.store(group="schema/model", name="hf", node=schema.HFModelConfig)
    store.store(group="schema/data", name="stdlib_text", node=schema.StdlibTextConfig)
    store.store(group="schema/data", name="local", node=schema.LocalTextConfig)
    store.store(group="schema/data", name="hub", node=schema.HubTextConfig)
    store.store(group="schema/data", name="self_generated", node=schema_own_text.SelfGeneratedConfig)
    store.store(group="schema/model", name="ctc_asr", node=schema_speech.SpeechModelConfig)
    store.store(group="schema/data", name="tts_speech", node=schema_speech.TTSSpeechConfig)
    store.store(group="schema/data", name="manifest", node=schema_speech.ManifestSpeechConfig)
    store.store(group="schema/data", name="asterisk", node=schema_speech.AsteriskSpeechConfig)
    store.store(group="schema/data", name="hub_speech", node=schema_speech.HubSpeechConfig)
    for name, info in infos().items():
        store.store(group="schema/recipe", name=name, node=info.settings)
    store.store(group="schema", name="optim", node=schema.OptimConfig)
    store.store(group="schema", name="engine", node=schema.EngineConfig)
    store.store(group="schema", name="tracking", node=schema.TrackingConfig)

"""Typed configuration of a training run: what the YAML tree under `conf/` may say, and nothing else.

Hydra composes into these dataclasses; below the entry point only they travel. `slots=True` makes a stray
attribute an error. Rules that tie fields together are in `ssd_train.cli.validate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ssd_infer.config.evaluation import EvalOptions


@dataclass(slots=True)
class TrainConfig:
    """Length, batch and optimisation of a run, whatever the recipe."""

    max_steps: int = 280
    """Optimizer steps of the whole run."""
    max_minutes: float = 0.0
    """End training after so many minutes, saved and reported on as it is; 0 sets no limit. A new start goes on."""
    batch_size: int = 8
    """Sequences in one forward pass on one process."""
    grad_accum: int = 1
    """Forward passes in one optimizer step."""
    learning_rate: float = 3e-3
    """Peak learning rate, reached after the warm-up."""
    weight_decay: float = 0.1
    """Decoupled weight decay; biases and norms are exempt."""
    warmup_steps: float = 0.05
    """Warm-up: a share of `max_steps` when below 1, else a whole number of steps."""
    lr_scheduler: str = "linear"
    """Learning-rate schedule after the warm-up: cosine, linear, constant or warmup_stable_decay (its last fifth)."""
    adam_beta1: float = 0.9
    """Adam's decay of the first moment."""
    adam_beta2: float = 0.95
    """Adam's decay of the second moment."""
    max_grad_norm: float = 1.0
    """Clip the gradient to this norm; 0 switches clipping off."""
    save_steps: int = 140
    """Write a checkpoint every so many steps, and at the end."""
    logging_steps: int = 10
    """Log a line of metrics every so many steps."""
    eval_steps: int = 140
    """Measure the validation loss every so many steps; 0 measures at the end only."""
    eval_batches: int = 16
    """Validation batches of one measurement."""
    keep_last: int = 3
    """Checkpoints kept besides the best one; 0 keeps all."""
    save_dtype: str = "auto"
    """Precision of saved weights: float32, bfloat16, float16, or auto: with model=hf the base's, else float32."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    num_workers: int = 0
    """Data-loading processes."""


@dataclass(slots=True)
class EvalConfig(EvalOptions):
    """The checkpoint report a run writes for itself: all options of an evaluation, briefer unless told otherwise."""

    enabled: bool = True
    """Evaluate the final checkpoint."""
    every_checkpoint: bool = False
    """Evaluate every saved checkpoint too."""
    samples: int = 48
    """Prompts of each task; more of them tell more than repeats."""
    max_new_tokens: int = 96
    """Tokens decoded for each prompt."""
    max_minutes: float = 5.0
    """Be done after this long, dealt out to the phases beforehand; 0 sets no limit."""


@dataclass(slots=True)
class ModelConfig:
    """Base of the model options; `kind` says which one."""

    kind: str = MISSING
    """`scratch` or `hf`."""


@dataclass(slots=True)
class ScratchModelConfig(ModelConfig):
    """A decoder trained from random weights."""

    kind: str = "scratch"
    """Always `scratch`."""
    family: str = "llama"
    """Architecture: llama, qwen3, mistral or olmo2."""
    num_layers: int = 16
    """Decoder layers L; depth is what skipping saves."""
    hidden_size: int = 192
    """Width of the residual stream."""
    intermediate_size: int = 512
    """Width inside the MLP."""
    num_heads: int = 6
    """Attention heads; must divide `hidden_size`."""
    num_kv_heads: int = 2
    """Key/value heads; must divide `num_heads`."""
    max_length: int = 512
    """Longest sequence in tokens, prompt included."""
    vocab_size: int = 4096
    """Rows of the embedding; at least the tokenizer's vocabulary."""
    tie_embeddings: bool = True
    """Share the embedding with the output head."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""
    scale_residual_init: bool = False
    """Divide the initial output projections of attention and MLP by √(2L), which steadies deep models."""
    tokenizer: str | None = None
    """Hub name or directory of a tokenizer; null trains a BPE tokenizer on the data."""


@dataclass(slots=True)
class ScratchMoeConfig(ScratchModelConfig):
    """A decoder with routed experts in every layer, trained from random weights."""

    family: str = "qwen3_moe"
    """Architecture: qwen3_moe, qwen2_moe or olmoe."""
    num_experts: int = 16
    """E, experts of a layer."""
    experts_per_token: int = 4
    """k, experts a token is routed to."""
    norm_topk_prob: bool = True
    """Rescale the weights of the chosen experts to sum to one."""
    shared_intermediate_size: int = 0
    """Width inside the shared expert every token goes to, qwen2_moe only; 0 for none."""


@dataclass(slots=True)
class HFModelConfig(ModelConfig):
    """A pretrained causal language model from the hub or from disk."""

    kind: str = "hf"
    """Always `hf`."""
    name: str = MISSING
    """Hub name or directory."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    trust_remote_code: bool = False
    """Allow the checkpoint to bring its own Python code."""


@dataclass(slots=True)
class DataConfig:
    """Base of the data options: how text becomes blocks of tokens."""

    kind: str = MISSING
    """`stdlib_text`, `local` or `hub`."""
    block_size: int = 256
    """Tokens of one packed training sequence."""
    validation_share: float = 0.02
    """Share of documents held out where the source has no validation part."""
    validation_blocks: int = 128
    """Most validation blocks kept."""
    tokenizer_vocab: int = 4096
    """Vocabulary of the tokenizer trained on this data when the model brings none."""
    cache_dir: str | None = None
    """Where tokenized data is kept; null means inside the run's output root."""
    add_bos: bool = True
    """Begin each document with what the tokenizer puts before a text (`<s>`, often nothing), as prompts do."""
    control_tokens: str = "text"
    """What `</s>` spelt out inside a document is: text (its letters), or parse (the control token itself)."""


@dataclass(slots=True)
class StdlibTextConfig(DataConfig):
    """Text of the running Python itself: documentation and standard-library sources; needs no download."""

    kind: str = "stdlib_text"
    """Always `stdlib_text`."""
    include_code: bool = True
    """Use source code besides prose."""
    code_share: float = 0.5
    """Share of training tokens drawn from code when `include_code` is set."""
    max_mb: float = 12.0
    """Megabytes of text used at most."""


@dataclass(slots=True)
class LocalTextConfig(DataConfig):
    """Text, JSONL or Parquet files on disk."""

    kind: str = "local"
    """Always `local`."""
    path: str = MISSING
    """File, directory or glob pattern."""
    text_field: str = "text"
    """Column that holds the text (JSONL, Parquet)."""
    validation_path: str | None = None
    """Held-out files; null splits `validation_share` off."""
    prompt_field: str | None = None
    """JSONL: field of the prompt that `text_field` answers, for recipes that learn answers (llada_sft)."""


@dataclass(slots=True)
class HubTextConfig(DataConfig):
    """A dataset of the Hugging Face hub."""

    kind: str = "hub"
    """Always `hub`."""
    name: str = MISSING
    """Dataset name on the hub."""
    subset: str | None = None
    """Configuration of the dataset."""
    revision: str | None = None
    """Branch, tag or commit of the dataset on the hub."""
    split: str = "train"
    """Split to train on."""
    text_field: str = "text"
    """Column that holds the text."""
    streaming: bool = False
    """Read without downloading everything first."""
    max_documents: int = 0
    """Read at most this many documents; 0 reads all."""


@dataclass(slots=True)
class OptimConfig:
    """The optimizer; learning rate, betas and weight decay are in `train`."""

    name: str = "adamw_torch"
    """`muon`, or an optimizer name as `transformers.TrainingArguments.optim` takes it."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    muon_learning_rate: float = 0.02
    """Muon: learning rate of the layers' matrices; everything else gets AdamW with `train.learning_rate`."""
    muon_momentum: float = 0.95
    """Muon: momentum."""
    muon_decay_share: float = 0.1
    """Muon: weight decay of the matrices as a share of `train.weight_decay`."""


@dataclass(slots=True)
class EngineConfig:
    """How processes share the work."""

    name: str = "single"
    """single (one process, or plain copies in those a launcher started), ddp, fsdp2 or deepspeed_zero1, 2 and 3."""
    cpu_offload: bool = False
    """Keep optimizer state in host memory, with fsdp2 and deepspeed_zero3 the weights too."""
    reshard_after_forward: bool = True
    """fsdp2: give weights back between forward and backward, which saves memory and costs a gather."""
    timeout_minutes: float = 30.0
    """A process that waits this long for another gives up, which ends the job."""
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Further settings laid over DeepSpeed's configuration."""


@dataclass(slots=True)
class TrackingConfig:
    """Where metrics go besides the terminal and `metrics.jsonl`."""

    name: str = "wandb"
    """wandb, tensorboard, mlflow, trackio or none."""
    project: str = "ssd"
    """Project the run belongs to."""
    entity: str | None = None
    """Team or user who owns the project; null takes the account's default."""
    mode: str = "auto"
    """auto (online when credentials exist, else offline), online, offline or disabled."""


@dataclass(slots=True)
class RecipeConfig:
    """Base of the recipes; `kind` is the key of the recipe registry."""

    kind: str = MISSING
    """Registry name of the recipe."""


@dataclass(slots=True)
class Root:
    """A whole training run."""

    recipe_name: str = MISSING
    """Name of the recipe, first part of the run directory; set by the recipe file."""
    run_name: str = "default"
    """Name of the run, second part of the run directory."""
    output_root: str = "outputs"
    """Directory that holds all runs."""
    seed: int = 0
    """Seed of initial weights, data order, dropout and curricula."""
    resume: str = "auto"
    """auto continues the run directory's last checkpoint; never starts anew."""
    dry_run: bool = False
    """Build, validate, take one step, save, and stop."""
    print_config: bool = False
    """Print the resolved configuration and stop."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    dtype: str = "float32"
    """Compute precision: float32, bfloat16 or float16."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, batch and optimisation."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """The report written at the end."""
    model: ModelConfig = MISSING
    """What is trained."""
    data: DataConfig = MISSING
    """What it is trained on."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Single process or a launcher."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """Where metrics go."""
    recipe: RecipeConfig = MISSING
    """The training method."""

    @property
    def run_dir(self) -> Path:
        """Return the run directory `output_root/recipe_name/run_name`, the same on every rank."""
        return Path(self.output_root) / self.recipe_name / self.run_name

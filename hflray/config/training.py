"""The sections of what is learned and how: data, network, local training (Algorithm 1), and how models are combined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from hflray.config.base import MOST_SAMPLES, Named, Range, Section
from hflray.support.text import shorten

Kind = Literal["classification", "regression", "next_token"]  # the kind of problem that a data set poses
Split = Literal["official", "stratified"]  # which images of Fashion-MNIST are for training and which for the test
WITH_A_SPLIT = ("fashion_mnist", "cifar10")  # the data sets that have an official split


class DataConfig(Section):
    """Which data set is used, and which samples each device holds."""

    name: Annotated[str, Named("dataset", endings=(".npz",))] = Field("digits", description="the data set")
    root: str | None = Field(None, description="folder of the data sets; null: $HFLRAY_DATA, else ~/.cache/hflray")
    options: dict[str, Any] = Field({})
    """arguments of the data set, such as file, target and owner of table"""
    split: Split = "stratified"
    """fashion_mnist: official, the split of its authors; stratified, that of hflray's runs before December 2026;
    cifar10 has its official split with both"""
    validation: int = Field(0, ge=0)
    """training samples that no device gets, at which stopping, choosing and targets look; 0: they look at the test
    set"""
    partition: Annotated[str, Named("partition")] = "majority"
    """how samples are dealt to devices; of flwr:NAME such as ShardPartitioner"""
    partition_options: dict[str, Any] = Field({})
    """further arguments of a partition that is not majority, dirichlet or iid; of resampled: mix, which is majority,
    dirichlet or iid; of owners: unmatched, which is error or drop"""
    majority_fraction: float = Field(0.8, gt=0, le=1, description="share of a device's samples in its majority class")
    dirichlet_alpha: float = Field(0.5, ge=1e-6, le=1e9, description="concentration of the Dirichlet partition")
    samples_per_device: Range[Annotated[int, Field(ge=1, le=MOST_SAMPLES)]] | None = None
    """range of D_n; null: the paper's range for the data set, scaled down if there are too few samples"""
    preprocess: Literal["crop", "pca"] = Field("crop", description="how 1×10×10 inputs are made for the mini model")

    def contradictions(self) -> Iterator[str]:
        if self.split == "official" and self.name not in WITH_A_SPLIT:
            yield (
                f"split: got official with data.name = {shorten(self.name)}, which has one split only; accepted with "
                f"it: stratified; set split to it, or name to {' or '.join(WITH_A_SPLIT)}"
            )


class ModelConfig(Section):
    """The network, by name or reference, and the options of its constructor."""

    name: Annotated[str, Named("model")] = "paper_cnn"
    """the network; of torchvision:NAME such as resnet18"""
    options: dict[str, Any] = Field({}, description="further arguments of the network")


class RuleConfig(Section):
    """What a device does with its gradients."""

    name: Annotated[str, Named("local_rule")] = Field("sgd", description="the rule")
    options: dict[str, Any] = Field({}, description="arguments of the rule")


class RateDecayConfig(Section):
    """How the learning rate falls."""

    factor: float = Field(1.0, gt=0, le=1, description="by which the learning rate is multiplied; 1: it is constant")
    every: Literal["round", "iteration", "step"] = "round"
    """after a round, an edge iteration, or a step of the device"""


class TrainingConfig(Section):
    """Local training (Algorithm 1), and the processes and processors that run it."""

    local_iterations: int = Field(5, ge=1, description="L, local iterations in an edge iteration")
    edge_iterations: int = Field(5, ge=1, description="Q, edge iterations in a round")
    batch_size: int = Field(64, ge=1, le=1_000_000_000, description="samples of a mini-batch")
    learning_rate: float = Field(0.01, gt=0, le=1e30, description="β, learning rate of SGD")
    rule: RuleConfig = RuleConfig()
    momentum: float = Field(0.0, ge=0, lt=1)
    """share of the last step that is added to a step; it is reset at each reception"""
    weight_decay: float = Field(0.0, ge=0, le=1e6, description="factor of the weights that is added to the gradient")
    clip: float | None = Field(None, gt=0, le=1e30, description="largest L2 norm of a gradient; null: no limit")
    learning_rate_decay: RateDecayConfig = RateDecayConfig()
    measure_updates: bool = False
    """log how far devices and the global model move (update/norm, update/drift), as is always done with another rule,
    aggregator or compressor, and with privacy"""
    loss: Annotated[str | None, Named("loss")] = None
    """null: cross_entropy for classes and tokens, mse for a regression"""
    local_iteration: Literal["epoch", "full_batch", "step"] = "epoch"
    """epoch: one pass of mini-batches; full_batch: equation (1) as written; step: one mini-batch, for which dvfs
    bills a whole pass all the same"""
    buffers: Literal["average", "local"] = "average"
    """floating buffers of the network, such as BatchNorm's statistics; average: they are sent and averaged like
    weights; local: normalisation layers use the statistics of the batch at hand and keep none"""
    precision: Literal["float32", "bf16", "tf32"] = "float32"
    """arithmetic of local training; bf16: layers in bfloat16, weights and sums in float32, which is faster on some CPUs
    and slower on others (--dry-run measures); tf32: products with ten bits of mantissa, on GPUs only"""
    kernel: Literal["auto", "eager", "channels_last", "fused", "fused_bf16", "layers", "batched"] = "auto"
    """how a gradient step is computed; it changes low bits, so all backends share it. auto: fused or fused_bf16 for the
    networks that it knows, layers for gru and resnet8 and in rounds of 100,000 sample passes for every network with
    such layers, else channels_last for images and eager. fused: a whole step of the paper's network (and of mlp,
    mlp_200_200, logistic, cnn_6_16, cnn_20_50 and lenet) in C code on one thread, compiled on first use; it needs a C
    compiler, and AVX512-BF16 for bf16, in which it computes the convolutions' forward passes only. fused_bf16: the
    same, with all products in bf16; a CPU without AVX512-BF16 multiplies rounded float32 numbers. layers: torch, but
    GRUs and group normalisation in C code, compiled on first use. batched: all devices at once, on GPUs"""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """processor that trains; auto: cuda if a GPU is found, else cpu"""
    cuda_graph: bool | None = None
    """on GPUs: replay a step as one CUDA graph instead of launching its kernels one by one, with the same bits; null:
    whichever is faster when timed at the start"""
    backend: Literal["ray", "serial"] = Field("ray", description="ray: device and edge actors; serial: this process")
    devices_per_actor: int | None = Field(None, ge=1, le=10_000_000)
    """simulated devices hosted by an actor; it determines num_actors"""
    num_actors: int | None = Field(None, ge=1, le=10_000)
    """device actors; null: one for each CPU of the trial, or for each of its GPUs"""
    threads: int | None = Field(None, ge=1, le=1024)
    """torch threads of each actor; they change low bits, so all backends share them; null: 1"""

    def contradictions(self) -> Iterator[str]:
        for name, value in (("precision", "tf32"), ("cuda_graph", True)):
            if self.device == "cpu" and getattr(self, name) == value:
                yield (
                    f"{name}: {value!r} is for GPUs, and device is 'cpu'; set training.device to cuda, or remove {name}"
                )
        if self.devices_per_actor is not None and self.num_actors is not None:
            yield (
                f"devices_per_actor = {self.devices_per_actor} and num_actors = {self.num_actors} both say how many "
                "actors there are; accepted: one of the two; remove the other"
            )


class AggregatorConfig(Section):
    """How models are combined at one place."""

    name: Annotated[str, Named("aggregator")] = "mean"
    """mean is for both places; fedavgm, fedadagrad, fedadam and fedyogi for the cloud, the others for edges"""
    options: dict[str, Any] = Field({}, description="arguments of the aggregator")


class AggregationConfig(Section):
    """How an edge combines its devices, and the cloud the edges."""

    edge: AggregatorConfig = AggregatorConfig()
    cloud: AggregatorConfig = AggregatorConfig()
    weights: Literal["samples", "uniform"] = "samples"
    """weight of a device's model; samples: its D_n; uniform: 1"""


class CompressorConfig(Section):
    """How updates are shortened on one hop."""

    name: Annotated[str, Named("compressor")] = Field("none", description="the compressor")
    options: dict[str, Any] = Field({}, description="arguments of the compressor")


class CompressionConfig(Section):
    """How a device shortens what it sends to its edge, and an edge to the cloud."""

    device: CompressorConfig = CompressorConfig()
    edge: CompressorConfig = CompressorConfig()


class PrivacyConfig(Section):
    """Differential privacy of devices (`hflray.training.privacy`)."""

    clip: float | None = Field(None, gt=0, le=1e30)
    """largest L2 norm of the update that a device sends in an edge iteration; null: no privacy"""
    noise_multiplier: float = Field(1.0, gt=0, le=1e9)
    """standard deviation of the noise in an edge's sum of updates, in multiples of clip"""
    delta: float = Field(1e-5, gt=0, lt=1, description="δ for which ε is computed")


# The settings by whose values of now a decay of the learning rate counts the rounds that have passed.
COUNTED: dict[str, tuple[str, ...]] = {
    "round": (),
    "iteration": ("training.edge_iterations",),
    "step": ("training.batch_size", "training.local_iterations", "training.edge_iterations"),
}
# Settings that may change between two rounds of a run. PBT changes them when a trial adopts another's checkpoint.
MUTABLE = ("training.learning_rate", "training.batch_size", "training.local_iterations", "training.edge_iterations")

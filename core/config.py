"""Frozen settings of a round: validated on construction, unchanged by a round trip through JSON, with named presets.

A round stores `to_json(config)`; `core.stored_config` also reads what older versions stored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from core.errors import require
from core.kernel_names import KERNEL_NETWORKS
from core.stored_config import current_name, from_dict, from_json, from_stored, to_json

__all__ = ["current_name", "from_dict", "from_json", "from_stored", "require", "to_json"]  # beside what is defined here

Preset = Literal["auto", "encoder", "paper", "laptop", "smoke"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """How bytes become network inputs. Audio defaults are those of the paper: 1 s at 16 kHz -> 32x32 log-mel. The
    settings of a project are derived from its pool (`core.media.derivation`)."""

    sample_rate: int = 16_000
    seconds: float = 1.0
    audio_channel: int = 0  # 0: the mean of all channels; else this one (1 is the first) if a file has it
    clip_from: Literal["loudest", "center", "start"] = "loudest"  # the part of a longer clip; shorter ones: `to_clip`
    predict_windows: int = 1  # a longer clip is scored on up to this many windows, and their probabilities averaged
    n_fft: int = 2048  # 128 ms
    hop: int = 512  # 32 ms
    n_mels: int = 32
    f_min: float = 20.0
    f_max: float = 8_000.0  # 0: half of the sample rate
    floor: float = -4.5  # log10 power below the clip's maximum
    noise_folder: str = ""  # background noise for augmentation; empty: generated white, pink and brown noise
    image_size: int = 32  # height in pixels
    image_width: int = 0  # 0: the same as the height
    image_fit: Literal["stretch", "crop", "fit"] = "stretch"  # scale both sides, crop the center, or add borders
    channels: Literal[1, 3] = 3  # of images; audio always has one
    flip: bool = False  # mirror images in augmentation; only for data where a mirrored item keeps its class
    patches: int = 0  # kinds of patches that describe photographs (`core.learning.patches`) in refinement; 0: none

    def __post_init__(self) -> None:
        require(
            1_000 <= self.sample_rate <= 192_000,
            f"A sample rate of {self.sample_rate} Hz is not supported; use 1,000 to 192,000 Hz.",
        )
        require(0.05 <= self.seconds <= 60, f"Clips of {self.seconds} s are not supported; use 0.05 to 60 s.")
        require(0 <= self.audio_channel <= 64, f"There is no channel {self.audio_channel}; use 1 to 64, or 0 for all.")
        require(16 <= self.n_fft <= 65_536, f"A window of {self.n_fft} samples is not supported; use 16 to 65,536.")
        require(1 <= self.hop <= self.n_fft, f"A hop of {self.hop} samples must lie between 1 and the window.")
        require(4 <= self.n_mels <= 256, f"{self.n_mels} mel bins are not supported; use 4 to 256.")
        require(
            0 <= self.f_min < self.f_top,
            f"The mel bins from {self.f_min} to {self.f_max} Hz leave no band below {self.sample_rate / 2} Hz.",
        )
        require(
            1 <= self.predict_windows <= 64,
            f"A prediction from {self.predict_windows} windows is not supported; use 1 to 64.",
        )
        require(-12 <= self.floor <= -0.5, f"A floor of {self.floor} is not supported; use -12 to -0.5.")
        require(8 <= self.image_size <= 512, f"An image size of {self.image_size} is not supported; use 8 to 512.")
        require(
            self.image_width == 0 or 8 <= self.image_width <= 512,
            f"An image width of {self.image_width} is not supported; use 0 (as wide as high) or 8 to 512.",
        )
        require(
            self.patches == 0 or 8 <= self.patches <= 2_000,
            f"A description by {self.patches} kinds of patches is not supported; use 0 (none) or 8 to 2,000.",
        )

    @property
    def f_top(self) -> float:
        """The upper end of the mel band in Hz: `f_max`, at most half of the sample rate."""
        return min(self.f_max or self.sample_rate / 2, self.sample_rate / 2)

    @property
    def picture_size(self) -> tuple[int, int]:
        """(height, width) of pictures."""
        return self.image_size, self.image_width or self.image_size

    @property
    def n_frames(self) -> int:
        """Columns of a spectrogram: one frame per hop, with the first and the last centered on the ends of the clip."""
        return 1 + round(self.seconds * self.sample_rate) // self.hop

    def input_shape(self, kind: str) -> tuple[int, int, int]:
        """(H, W, C) of one network input; `kind` is "audio" or "image"."""
        return (*self.picture_size, self.channels) if kind == "image" else (self.n_mels, self.n_frames, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """The proxy's kernel and its Nyström features. `KERNEL_NETWORKS` states the cost of each network."""

    network: str = "scnn"
    block_size: int = 4  # blocks in each group of wrn and wrn-gap
    n_landmarks: int = 2048
    landmarks: Literal["uniform", "leverage"] = "uniform"
    landmark_seed: int = 0
    tolerance: float = 1e-6  # directions of K_QQ below tolerance * largest eigenvalue are dropped

    def __post_init__(self) -> None:
        known = ", ".join(KERNEL_NETWORKS)
        require(self.network in KERNEL_NETWORKS, f"There is no kernel called {self.network!r}; choose one of {known}.")
        require(1 <= self.block_size <= 16, f"The kernel's block size is {self.block_size}; use 1 to 16.")
        require(self.n_landmarks >= 1, f"{self.n_landmarks} landmarks were requested; use at least 1.")
        require(0 < self.tolerance < 1, f"The kernel's tolerance is {self.tolerance}; use more than 0 and less than 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig:
    """The strategy, the batch size and the proxy of the bilevel problem."""

    strategy: str = "bico"
    batch_size: int = 10
    penalty: float = 1e-4
    n_views: int = 16  # augmented views of each labeled or chosen item in the inner problem (the paper: 100)
    max_candidates: int = 100_000  # with more unlabeled items, a seeded sample represents the pool
    # similarity: graph diffusion, or the kernel without a graph; head: the model's last layer, with the expected loss
    # as objective; similarity-head: graph diffusion, or the head without a graph
    proxy: Literal["kernel", "embedding", "similarity", "head", "similarity-head"] = "kernel"
    uncertainty_power: float = 0.0  # bico: an item's weight in the outer loss is (1 - margin) to this power
    max_pairwise: int = 8_192  # largest matrix of all pairs; larger pools are sampled (prob_cover, herding, typiclust)
    near_duplicate: float = (
        0.05  # items closer than this share of the typical distance are near-duplicates; 0: equal items only
    )

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, f"The batch size is {self.batch_size}; use at least 1.")
        require(self.penalty > 0, f"The penalty is {self.penalty}; it must be above 0.")
        require(self.n_views >= 0, f"{self.n_views} views were requested; use 0 (none) or more.")
        require(
            0 <= self.uncertainty_power <= 20,
            f"The uncertainty power is {self.uncertainty_power}; use 0 (equal weights) to 20.",
        )
        require(self.max_candidates >= 100, f"At most {self.max_candidates} candidates is too few; use 100 or more.")
        require(self.max_pairwise >= 100, f"At most {self.max_pairwise} pairwise items is too few; use 100 or more.")
        require(
            0 <= self.near_duplicate < 1,
            f"Near-duplicates at {self.near_duplicate} of the typical distance; use 0 to below 1.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Softmax regression on the features of a frozen encoder (`core.learning.head`)."""

    dimensions: int = 128  # principal components of the features
    level: bool = True  # the leading components get equal variance; not for the last layer of a trained network
    penalty: float = 1e-3
    balance: bool = True  # labels are weighted so that every class has the same weight
    neighbors: int = 10  # of label spreading over the pool; 0: only the labels, without unlabeled items
    self_training: int = 2  # further fits with the head's own predictions as targets of unlabeled items
    alignment: float = 0.5  # of their class shares towards equal shares, from 0 (unchanged) to 1 (equal)

    def __post_init__(self) -> None:
        require(1 <= self.dimensions <= 4_096, f"{self.dimensions} dimensions were requested; use 1 to 4,096.")
        require(self.penalty > 0, f"The head's penalty is {self.penalty}; it must be above 0.")
        require(0 <= self.neighbors <= 100, f"{self.neighbors} neighbors were requested; use 0 (none) to 100.")
        require(0 <= self.self_training <= 20, f"{self.self_training} self-training fits; use 0 (none) to 20.")
        require(0 <= self.alignment <= 1, f"The alignment of class shares is {self.alignment}; use 0 to 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The pretrained encoder of the presets `encoder` and `auto` (`core.encoders`, `core.rounds.approach`)."""

    name: str = "auto"  # auto: the best of the last audition, else the built-in or first added one; none: no encoder
    identity: str = ""  # of the encoder that the round uses, set at its start; empty: training from scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsConfig:
    """The treatment of labels that may be wrong (`core.labels`). Earlier versions did not treat them differently."""

    weigh: bool = True  # labels that may be wrong have less weight until someone confirms them
    second_looks: bool = True  # a batch may contain their items again if that changes the loss more than a new item
    clips: Literal["pooled", "graph"] = "pooled"  # predictions of clips for the check: by the graph and by heads, or by
    # the graph alone, as in earlier versions
    earlier_rounds: bool = True  # the check of clips also uses predictions that earlier rounds made without the label


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityConfig:
    """The similarity graph of audio clips and label propagation over it (`core.similarity.propagation`)."""

    neighbors: int = 0  # edges per item, to its nearest neighbors; 0: no graph and no propagation
    reach: float = 0.7  # length scale of a propagation step, as a share of the pool's typical distance

    def __post_init__(self) -> None:
        require(0 <= self.neighbors <= 100, f"{self.neighbors} similar items were requested; use 0 (none) to 100.")
        require(
            0 < self.reach <= 2,
            f"The reach of label propagation is {self.reach} of the typical distance; use more than 0, at most 2.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentationConfig:
    """Augmentation of clips (`core.media.augment_audio`): waveforms as in the paper, then a warp of pictures."""

    probability: float = 0.5  # of each of the four changes of a waveform
    amplitude: float = 0.2  # amplitude times 1 - amplitude to 1 + amplitude
    speed: float = 0.2  # speed times 1 - speed to 1 + speed
    shift_seconds: float = 0.25  # largest shift in either direction
    snr_low: float = 0.0  # dB: the lower end of the signal-to-noise ratio of background noise
    snr_high: float = 40.0
    level: Literal["normalized", "kept"] = "normalized"  # kept: relative to the clip's maximum before augmentation
    light_warp: float = 0.5  # strength of the spectrogram's warp in weak and standard views; 0: none
    strong_warp: float = 1.3  # in strong views: FixMatch and pretraining

    def __post_init__(self) -> None:
        require(0 <= self.probability <= 1, f"Augmentation with probability {self.probability}; use 0 to 1.")
        require(0 <= self.amplitude < 1 and 0 <= self.speed < 1, "Changes of amplitude and speed are 0 to below 1.")
        require(0 <= self.shift_seconds <= 60, f"A shift of {self.shift_seconds} s is not supported; use 0 to 60.")
        require(self.snr_low <= self.snr_high, f"The noise runs from {self.snr_low} to {self.snr_high} dB; swap them.")
        require(min(self.light_warp, self.strong_warp) >= 0, "The strength of a warp cannot be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapConfig:
    """The two-dimensional map of the pool."""

    n_neighbors: int = 15
    min_dist: float = 0.1
    max_points: int = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The learner. The defaults are close to the `laptop` preset; `preset()` returns the named combinations."""

    method: Literal["fixmatch", "mixmatch", "supervised"] = "fixmatch"
    network: str = "resnet-small"  # or "wrn-DEPTH-WIDTH", such as "wrn-28-10"
    steps: int = 2_100  # 0: `epochs` passes over the unlabeled items
    warm_steps: int = (
        0  # steps of a round that starts from the previous round's model; 0: every round starts from scratch
    )
    epochs: int = 0
    refine_steps: int = 0  # further steps on propagated labels of clips or on patches of photographs; 0: none
    refine_rate: float = 2e-3  # learning rate of these steps
    pretrain_steps: int = 0  # contrastive pretraining without labels when training starts from scratch; 0: none
    pretrain_batch: int = 128  # items of a pretraining step, each in two views
    pretrained_rate_scale: float = 1.0  # factor of the learning rate for pretrained layers; the head uses the full rate
    labeled_batch: int = 16
    unlabeled_batch: int = 48
    balance: bool = True  # labeled batches are drawn with the class prior of `align`, not with the shares of the labels
    learning_rate: float = 2e-3  # AdamW, cosine to 0
    warmup_steps: int = 20
    weight_decay: float = 1e-3
    ema_decay: float = 0.999  # moving average of the weights, used for prediction; 0: the last weights
    augment: bool = True  # False: clean inputs only (supervised)
    bank_views: int = 16  # augmented views per clip, made once; 0: augment waveforms in every step
    lambda_u: float = 1.0  # weight of the unlabeled loss
    ramp: float = 0.1  # share of the steps over which lambda_u rises from 0
    threshold: float = 0.85  # FixMatch: least confidence of a pseudo-label as target; the maximum if it adapts
    adapt_threshold: bool = False  # FixMatch: the threshold follows the mean confidence of the predictions
    align: Literal["auto", "uniform", "off"] = "auto"  # FixMatch: class prior of distribution alignment
    sharpening: float = 0.5  # MixMatch: T
    n_augmentations: int = 2  # MixMatch: K, augmentations averaged into a label guess
    mix_alpha: float = 0.75  # MixMatch: alpha of Beta(alpha, alpha)
    batch_norm: Literal["joint", "interleaved"] = "joint"  # MixMatch: the batches that set the statistics
    predict_views: int = 0  # augmented views averaged into each prediction, in addition to the clean one
    calibrate: bool = True
    amp: bool = True  # mixed precision, on CUDA only
    compile: bool = False  # torch.compile

    def __post_init__(self) -> None:
        require(self.steps >= 0 and self.epochs >= 0, "The number of steps and epochs cannot be negative.")
        require(self.steps > 0 or self.epochs > 0, "Training needs a number of steps or of epochs above 0.")
        require(self.refine_steps >= 0, f"{self.refine_steps} refinement steps; use 0 (none) or more.")
        require(self.refine_rate > 0, f"The learning rate of refinement is {self.refine_rate}; it must be above 0.")
        require(self.pretrain_steps >= 0, f"{self.pretrain_steps} pretraining steps; use 0 (none) or more.")
        require(self.pretrain_batch >= 2, f"The pretraining batch is {self.pretrain_batch}; use at least 2.")
        require(
            0 <= self.pretrained_rate_scale <= 1,
            f"The learning rate of pretrained layers is scaled by {self.pretrained_rate_scale}; use 0 to 1.",
        )
        require(self.labeled_batch >= 1, f"The labeled batch is {self.labeled_batch}; use at least 1.")
        require(self.unlabeled_batch >= 1, f"The unlabeled batch is {self.unlabeled_batch}; use at least 1.")
        require(self.learning_rate > 0, f"The learning rate is {self.learning_rate}; it must be above 0.")
        require(0 <= self.ema_decay < 1, f"The EMA decay is {self.ema_decay}; use 0 to below 1.")
        require(0 <= self.threshold < 1, f"The threshold is {self.threshold}; use 0 to below 1.")
        require(self.sharpening > 0, f"The sharpening temperature is {self.sharpening}; it must be above 0.")
        require(self.n_augmentations >= 1, f"{self.n_augmentations} augmentations were requested; use at least 1.")
        require(self.mix_alpha > 0, f"The mixing alpha is {self.mix_alpha}; it must be above 0.")
        require(0 <= self.bank_views <= 128, f"A bank of {self.bank_views} views is not supported; use 0 to 128.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """All settings of one round, stored with it."""

    seed: int = 0
    preset: Preset = "auto"
    changed: tuple[str, ...] = ()  # settings that replace the preset's, as "training.method"
    media: MediaConfig = field(default_factory=MediaConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    similarity: SimilarityConfig = field(default_factory=SimilarityConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    map: MapConfig = field(default_factory=MapConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)


def preset(name: Preset, device_type: str = "cpu", seed: int = 0) -> RoundConfig:
    """All settings of a named preset. `auto` is `paper` on a GPU ("cuda") and `laptop` elsewhere.

    encoder  a frozen pretrained encoder with a softmax head: seconds per round once the pool is encoded
    paper    WRN-28-10, MixMatch as its authors run it, 30 epochs, Adam 1e-3, from scratch each round, uncalibrated
             pseudo-labels, augmentation as printed; the authors' `wrn` kernel with 100 views in the selection
    laptop   for two CPU cores: a small ResNet with FixMatch, about two minutes per round; label propagation over the
             similarity graph of clips, which also refines the network, and a selection weighted by uncertainty
    smoke    every stage in seconds, for tests and a first try; accuracy is low
    """
    if name == "auto":
        return dataclasses.replace(preset("paper" if device_type == "cuda" else "laptop", seed=seed), preset="auto")
    if name == "paper":
        training = TrainingConfig(
            method="mixmatch", network="wrn-28-10", steps=0, warm_steps=0, epochs=30,
            labeled_batch=64, unlabeled_batch=64, learning_rate=1e-3, warmup_steps=0, weight_decay=1e-4,
            lambda_u=10.0, ramp=1.0, bank_views=0, balance=False, batch_norm="interleaved", calibrate=False,
        )  # fmt: skip
        return RoundConfig(
            seed=seed, preset=name, training=training, kernel=KernelConfig(network="wrn"),
            selection=SelectionConfig(n_views=100), augmentation=AugmentationConfig(level="kept", light_warp=0.0),
            labels=LabelsConfig(weigh=False, second_looks=False),
        )  # fmt: skip
    if name == "encoder":
        selection = SelectionConfig(proxy="head", uncertainty_power=1.0, n_views=0)
        return RoundConfig(seed=seed, preset=name, selection=selection)
    if name == "smoke":
        training = TrainingConfig(steps=30, warm_steps=15, labeled_batch=8, unlabeled_batch=16, bank_views=2)
        kernel = KernelConfig(n_landmarks=32)
        return RoundConfig(
            seed=seed, preset=name, training=training, kernel=kernel, selection=SelectionConfig(n_views=2)
        )
    require(name == "laptop", f"There is no preset {name!r}; choose auto, encoder, paper, laptop or smoke.")
    return RoundConfig(
        seed=seed,
        preset="laptop",
        training=TrainingConfig(predict_views=4, refine_steps=700),  # chosen without test clips: docs/reproduction.md
        selection=SelectionConfig(proxy="similarity-head", uncertainty_power=1.0),  # chosen likewise: docs/benchmark.md
        similarity=SimilarityConfig(neighbors=10, reach=0.85),  # chosen without test clips: docs/reproduction.md
    )

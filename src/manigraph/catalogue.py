"""Everything that has a name on the command line, in one place, without importing any of it.

A method, data set, backbone or recipe is added by writing its file and one line here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from manigraph.registry import Entry, Registry

if TYPE_CHECKING:
    from manigraph.algorithms.base import Algorithm
    from manigraph.config import Config
    from manigraph.data.encoders.base import EncoderFamily
    from manigraph.data.sources.base import Source
    from manigraph.nn.backbones.base import Backbone

ALGORITHMS: "Registry[type[Algorithm[Any]]]" = Registry(
    "algorithm",
    {
        "supervised": Entry(
            "manigraph.algorithms.supervised:Supervised",
            "cross-entropy on the labelled images only; the control",
        ),
        "pseudo_label": Entry(
            "manigraph.algorithms.pseudo_label:PseudoLabel",
            "the likeliest class of an unlabelled image is taken for its label (Lee 2013)",
        ),
        "pi_model": Entry(
            "manigraph.algorithms.pi_model:PiModel",
            "two augmentations of an image must agree (Laine & Aila 2017; Sajjadi et al. 2016)",
        ),
        "vat": Entry(
            "manigraph.algorithms.vat:VAT",
            "predictions must resist the worst small change of an image (Miyato et al. 2018)",
        ),
        "pi_vat": Entry(
            "manigraph.algorithms.pi_vat:PiVAT",
            "Pi-model whose noise is the VAT perturbation; the paper's baseline (Kuo et al. 2019)",
        ),
        "mean_teacher": Entry(
            "manigraph.algorithms.mean_teacher:MeanTeacher",
            "the student must agree with the average of its own past (Tarvainen & Valpola 2017)",
        ),
        "temporal_ensembling": Entry(
            "manigraph.algorithms.temporal_ensembling:TemporalEnsembling",
            "predictions must agree with the mean of an image's earlier ones (Laine & Aila 2017)",
        ),
        "sntg": Entry(
            "manigraph.algorithms.sntg:SNTG",
            "Pi-model or Mean Teacher, whose classes pull features together or apart (Luo et al. 2018)",
        ),
        "mixup": Entry(
            "manigraph.algorithms.mixup:MixUp",
            "between two images, predictions between their labels (Zhang et al. 2018; Berthelot et al. 2019)",
        ),
        "mixmatch": Entry(
            "manigraph.algorithms.mixmatch:MixMatch",
            "averaged, sharpened guesses; all images mixed with each other (Berthelot et al. 2019)",
        ),
        "fixmatch": Entry(
            "manigraph.algorithms.fixmatch:FixMatch",
            "sure predictions on weak views are the classes of strong views (Sohn et al. 2020)",
        ),
        "fast_swa": Entry(
            "manigraph.algorithms.weight_averaging:WeightAveraging",
            "Pi-model or Mean Teacher, its weights averaged over cycles (Athiwaratkun et al. 2019)",
        ),
        "deep_cotraining": Entry(
            "manigraph.algorithms.deep_cotraining:DeepCoTraining",
            "networks agree, and none is misled where another is (Qiao et al. 2018)",
        ),
        "memory": Entry(
            "manigraph.algorithms.memory:MemorySSL",
            "predictions follow a memory of each class's features and predictions (Chen et al. 2018)",
        ),
        "compact_clustering": Entry(
            "manigraph.algorithms.compact_clustering:CompactClustering",
            "labels walk over a graph of the batch; classes become clusters (Kamnitsas et al. 2018)",
        ),
        "manifold_graph": Entry(
            "manigraph.algorithms.manifold_graph:ManifoldGraphMethod",
            "Pi-VAT, learned prototypes, and a graph that refines features (Kuo et al. 2019)",
        ),
    },
)

BACKBONES: "Registry[type[Backbone]]" = Registry(
    "backbone",
    {
        "cnn13": Entry(
            "manigraph.nn.backbones.cnn13:CNN13",
            "13-layer CNN of the paper (Laine & Aila 2017), any image from 8x8; 3.12 M at width 1",
        ),
        "wide_resnet28_2": Entry(
            "manigraph.nn.backbones.wide_resnet:WideResNet28x2",
            "Wide-ResNet-28-2 (Zagoruyko & Komodakis 2016), the later standard; 1.5 M at width 1",
        ),
        "resnet9": Entry(
            "manigraph.nn.backbones.resnet9:ResNet9",
            "ResNet-9 (Page 2018), for short trainings: most weights for least time; 6.6 M at width 1",
        ),
        "small_cnn": Entry(
            "manigraph.nn.backbones.small_cnn:SmallCNN",
            "4-layer CNN without global pooling, for tiny images such as digits; 65 k at width 1",
        ),
        "efficientnet_lite0": Entry(
            "manigraph.nn.backbones.efficientnet_lite0:FineTunedLite0",
            "EfficientNet-Lite0, trained on from its weights for ImageNet; 3.4 M; extra `pretrained`",
        ),
        "mlp": Entry(
            "manigraph.nn.backbones.mlp:MLP",
            "two hidden layers, for feature vectors",
        ),
        "leading": Entry(
            "manigraph.nn.backbones.leading:Leading",
            "no network, the first 512 entries at width 1; for embeddings with preprocessing.kind pca",
        ),
        "head": Entry(
            "manigraph.nn.backbones.head:Head",
            "no network: ready-made embeddings are the features, the graph and the classifier learn",
        ),
    },
)

DATASETS: "Registry[Source]" = Registry(
    "data set",
    {
        "digits": Entry(
            "manigraph.data.sources.digits:load_digits",
            "1,797 handwritten digits of 8x8 pixels, shipped with scikit-learn",
        ),
        "cifar10": Entry(
            "manigraph.data.sources.benchmarks:load_cifar10",
            "photographs of 10 kinds of things, 32x32 colour",
        ),
        "cifar100": Entry(
            "manigraph.data.sources.benchmarks:load_cifar100",
            "photographs of 100 kinds of things, 32x32 colour",
        ),
        "svhn": Entry(
            "manigraph.data.sources.benchmarks:load_svhn",
            "house numbers cropped to one digit, 32x32 colour",
        ),
        "fashion_mnist": Entry(
            "manigraph.data.sources.benchmarks:load_fashion_mnist",
            "10 kinds of clothes, 28x28 grey",
        ),
        "folder": Entry(
            "manigraph.data.sources.folder:load_folder",
            "your own images, as in `manigraph train PATH`",
        ),
    },
)

ENCODERS: "Registry[EncoderFamily]" = Registry(
    "pretrained network",
    {
        "efficientnet_lite0": Entry(
            "manigraph.data.encoders.efficientnet_lite:efficientnet_lite0",
            "EfficientNet-Lite0, trained on ImageNet; `:mirrored` looks twice; extra `pretrained`",
        ),
        "timm": Entry(
            "manigraph.data.encoders.timm:timm_network",
            "any network of timm, as `timm:NAME`, if timm is installed",
        ),
    },
)

RECIPES: "Registry[Callable[[str], Config[Any]]]" = Registry(
    "recipe",
    {
        "digits": Entry(
            "manigraph.recipes.digits:digits",
            "digits with 20 labels, small CNN; about a minute on two cores",
        ),
        "digits_shared": Entry(
            "manigraph.recipes.digits:digits_shared",
            "digits before any method had settings of its own; what digits-tuning starts from",
        ),
        "svhn": Entry(
            "manigraph.recipes.paper:svhn",
            "the paper: SVHN with 1,000 labels, CNN-13, 282,000 steps; for a GPU",
        ),
        "cifar10": Entry(
            "manigraph.recipes.paper:cifar10",
            "the paper: CIFAR-10 with 4,000 labels, CNN-13, 282,000 steps; for a GPU",
        ),
        "cifar100": Entry(
            "manigraph.recipes.paper:cifar100",
            "the paper: CIFAR-100 with 10,000 labels, CNN-13, 282,000 steps; for a GPU",
        ),
        "svhn_16px": Entry(
            "manigraph.recipes.small:svhn_16px",
            "SVHN at 16x16 pixels with 1,000 labels, CNN-13 at width 1/8, 6,000 steps (docs/results.md)",
        ),
        "cifar10_16px": Entry(
            "manigraph.recipes.small:cifar10_16px",
            "CIFAR-10 at 16x16 pixels with 4,000 labels, as svhn_16px; tables of docs/results.md",
        ),
        "cifar100_16px": Entry(
            "manigraph.recipes.small:cifar100_16px",
            "CIFAR-100 at 16x16 pixels with 10,000 labels, as svhn_16px",
        ),
        "svhn_small": Entry(
            "manigraph.recipes.small:svhn_small",
            "SVHN with 1,000 labels, CNN-13 at width 1/4, 3,000 steps; for a CPU",
        ),
        "cifar10_small": Entry(
            "manigraph.recipes.small:cifar10_small",
            "CIFAR-10 with 4,000 labels, CNN-13 at width 1/4, 3,000 steps; for a CPU",
        ),
        "cifar100_small": Entry(
            "manigraph.recipes.small:cifar100_small",
            "CIFAR-100 with 10,000 labels, CNN-13 at width 1/4, 3,000 steps; for a CPU",
        ),
        "svhn_30min": Entry(
            "manigraph.recipes.half_hour:svhn_30min",
            "SVHN with 250 labels, the best of half an hour of one CPU core (docs/results.md)",
        ),
        "cifar10_30min": Entry(
            "manigraph.recipes.half_hour:cifar10_30min",
            "CIFAR-10 with 4,000 labels, the best of half an hour of one CPU core (docs/results.md)",
        ),
        "fashion_mnist": Entry(
            "manigraph.recipes.small:fashion_mnist",
            "Fashion-MNIST with 1,000 labels, CNN-13 at width 1/4, 3,000 steps; for a CPU",
        ),
        "folder": Entry(
            "manigraph.recipes.small:folder",
            "your own images with all their labels; what `manigraph train PATH` uses",
        ),
        "cifar10_features": Entry(
            "manigraph.recipes.features:cifar10_features",
            "CIFAR-10 with 250 labels, the head on pretrained features; minutes on a CPU",
        ),
        "folder_features": Entry(
            "manigraph.recipes.features:folder_features",
            "your own photographs (--data.path), the head on pretrained features; minutes on a CPU",
        ),
        "folder_fine_tuned": Entry(
            "manigraph.recipes.features:folder_fine_tuned",
            "your own photographs (--data.path), all of a pretrained network learns; slow on a CPU",
        ),
    },
)

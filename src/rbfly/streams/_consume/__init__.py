"""Subscriptions to a stream."""

"""Lets several processes share one transaction: reads their frames, checks that they live, joins their writes."""

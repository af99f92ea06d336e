"""What history costs: branches, merges, differences."""

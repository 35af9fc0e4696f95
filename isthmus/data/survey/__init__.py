"""Who holds what: statistics, heterogeneity, and all of it as one survey."""

"""The user's own graphs, links and sets of graphs: folders of tables, read, checked, described and written."""

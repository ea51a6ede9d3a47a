"""What rules are written with: the graph, the rule and its report, views, constants."""

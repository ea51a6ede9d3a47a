"""Tools of rules: the graph, the rule and its report, strided views, values of constants."""

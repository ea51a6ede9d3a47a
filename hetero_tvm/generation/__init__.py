"""Language models at run time: sessions over one copy of the weights, sampling, batches; imports no
compiler."""

"""A language model behind HTTP, in the words of OpenAI's API; needs the extra ``serve``."""

"""Where the fast encoder is proven to give the ids of the reference.

Input: a parsed tokenizer file.
Does: compares its structure with the list of proven rule sets.
Output: the name of a rule set, or a sentence that says why there is none.
"""

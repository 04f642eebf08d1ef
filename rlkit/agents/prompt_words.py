"""The words of the Executor's prompt, by layout and language. `{n}` is `search.max_clues`."""

from __future__ import annotations

RULES = {
    ("two_phase", "en"): """\
You are the Executor of a search system that answers a hard question over a library of documents, \
round by round. Write the clues of this round: short queries for a keyword search.
- Write up to {n} clues. Each names one person, place, work or organisation, with a few key words.
- Take the names from the question, the subgoal and the texts found; go for what is still missing.
- Do not search for a document that was found already, and do not repeat a clue.
Answer in exactly this form:
<analysis>one or two sentences: what is known, what is missing</analysis>
<search_clues>
<clue>first clue</clue>
<clue>second clue</clue>
</search_clues>""",
    ("two_phase", "zh"): """\
你是一个多轮检索系统的执行者，该系统在文档库中查找难题的答案。请为本轮写出搜索线索，即用于关键词检索的简短查询。
- 最多写{n}条线索，每条写出一个人物、地点、作品或机构的名称，并附少量关键词。
- 名称取自问题、子目标和已找到的正文；优先查找仍然缺少的内容。
- 不要搜索已经找到的文档，也不要重复线索。
严格按以下格式回答：
<analysis>一两句话：已知什么，还缺什么</analysis>
<search_clues>
<clue>第一条线索</clue>
<clue>第二条线索</clue>
</search_clues>""",
    ("legacy", "en"): """\
You search a library of documents, round by round, to answer a question. Write up to {n} search \
clues for this round, one a line, numbered, in a <search> block. Each names one person, place, \
work or organisation to look up next, taken from the question or the texts found. Do not search \
for a document that was found already.
Answer in exactly this form:
<search>
1. first clue
2. second clue
</search>""",
    ("legacy", "zh"): """\
你在文档库中逐轮检索，以回答一个问题。请为本轮写出最多{n}条搜索线索，每行一条并编号，放在<search>块中。\
每条写出下一步要查找的一个人物、地点、作品或机构的名称，取自问题或已找到的正文。不要搜索已经找到的文档。
严格按以下格式回答：
<search>
1. 第一条线索
2. 第二条线索
</search>""",
    ("bare", "en"): """\
Write up to {n} search clues, each in <clue> tags, one a line. Name the people, places and works \
to look up next. Take names from the question and from the texts found. Do not name what was found \
already. Write nothing else.""",
    ("bare", "zh"): """\
写出最多{n}条搜索线索，每条放在<clue>标签中，每行一条。写出下一步要查找的人物、地点和作品的名称，\
取自问题和已找到的正文。不要写已经找到的内容。除此之外什么都不要写。""",
}

LABELS = {
    "en": {
        "important": "Found:",
        "related": "Found, less relevant:",
        "nothing": "Found: nothing yet",
        "shortened": "(Older texts are shortened or left out.)",
        "subgoal": "Subgoal: ",
        "question": "Question: ",
        "cut": " [… the question is cut here]",
    },
    "zh": {
        "important": "已找到：",
        "related": "已找到，相关性较低：",
        "nothing": "已找到：暂无",
        "shortened": "（较早的正文已缩短或省略。）",
        "subgoal": "子目标：",
        "question": "问题：",
        "cut": "［……问题在此截断］",
    },
}

"""The stories of the generated word problems: wordings and steps, as data.

In a wording, {name}, {He}, {his} are a person and {a}, {b}, ... the numbers; in a step, x, y, z are
the results of the steps before it. `small` names the numbers from 2 to 9, which stand in products
and quotients; the others go up to the largest that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Story:
    """One kind of problem, told in at least two wordings."""

    name: str
    steps: tuple[str, ...]
    small: str
    wordings: tuple[str, ...]

    @property
    def letters(self) -> str:
        """The numbers of the story, in order."""
        return "".join(letter for letter in "abcde" if f"{{{letter}}}" in self.wordings[0])


PEOPLE = {
    "en": (
        *((name, "He", "his") for name in "Tom Ben Omar Luis Sam Ivan Raj Max Leo Hugo".split()),
        *((name, "She", "her") for name in "Anna Mia Sara Lily Nora Emma Zoe Ruth Ivy Ada".split()),
    ),
    "zh": tuple((name, "", "") for name in "小明 小红 小刚 小丽 小华 小军 小芳 小强".split()),
}

_EN = (
    Story("apples", ("b * c", "a + x", "y - d"), "bc", (
        "{name} has {a} apples. {He} buys {b} bags with {c} apples each. {He} gives {d} away. "
        "How many apples does {name} have now?",
        "{name} starts with {a} apples and gets {b} more bags of {c} apples. Then {d} apples are "
        "given away. How many apples are left?",
    )),
    Story("bus", ("a - b", "x + c"), "", (
        "There are {a} people on a bus. {b} people get off and {c} people get on. "
        "How many people are on the bus now?",
        "A bus carries {a} people. At a stop {b} of them leave and {c} new people enter. "
        "How many people does the bus carry then?",
    )),
    Story("savings", ("a * b", "x - c"), "ab", (
        "{name} saves {a} dollars a week for {b} weeks. {He} spends {c} dollars on a book. "
        "How many dollars are left?",
        "Every week for {b} weeks, {name} puts {a} dollars away. A book then costs {name} {c} "
        "dollars. How much money remains?",
    )),
    Story("pencils", ("a * b", "c * d", "x + y"), "abcd", (
        "{name} buys {a} boxes with {b} pencils each and {c} boxes with {d} pens each. "
        "How many pencils and pens does {name} buy?",
        "A box holds {b} pencils, and {name} takes {a} of them. {He} also takes {c} boxes of {d} "
        "pens. How many things to write with are there in all?",
    )),
    Story("cookies", ("a + b", "x / c"), "c", (
        "{name} bakes {a} cookies in the morning and {b} in the evening. {He} shares them equally "
        "among {c} friends. How many cookies does each friend get?",
        "{a} cookies are baked by {name}, and later {b} more. {c} friends divide all of them "
        "equally. How many does each one get?",
    )),
    Story("pages", ("b * c", "a - x"), "bc", (
        "A book has {a} pages. {name} reads {b} pages a day for {c} days. "
        "How many pages are left to read?",
        "{name} reads {b} pages on each of {c} days. The book is {a} pages long. "
        "How many pages has {name} still to read?",
    )),
    Story("stamps", ("a + b", "x - c"), "", (
        "{name} has {a} stamps. {He} finds {b} more and loses {c}. "
        "How many stamps does {name} have?",
        "To {his} {a} stamps {name} adds {b}, but {c} get lost. How many stamps are there now?",
    )),
    Story("chairs", ("a * b", "x + c", "y - d"), "ab", (
        "A hall has {a} rows of {b} chairs. {c} chairs are brought in and {d} are broken. "
        "How many chairs can be used?",
        "In a hall, chairs stand in {a} rows with {b} in each. Someone adds {c} chairs, but {d} "
        "turn out to be broken. How many good chairs are there?",
    )),
    Story("tickets", ("a * b", "c - x"), "ab", (
        "{name} buys {a} tickets for {b} dollars each and pays with {c} dollars. "
        "How many dollars does {name} get back?",
        "One ticket costs {b} dollars. {name} has {c} dollars and takes {a} tickets. "
        "How many dollars does {he} keep?",
    )),
    Story("eggs", ("a * b", "x - c", "y / d"), "abd", (
        "{a} hens lay {b} eggs each. {c} eggs break, and the rest go into {d} boxes equally. "
        "How many eggs are in each box?",
        "Each of {a} hens lays {b} eggs. Without the {c} broken ones, the eggs fill {d} boxes "
        "with the same number. How many eggs does a box hold?",
    )),
    Story("marbles", ("a * b", "a + x"), "b", (
        "{name} has {a} marbles. A friend has {b} times as many. "
        "How many marbles do they have together?",
        "A friend has {b} times as many marbles as {name}, who has {a}. "
        "How many marbles have both of them in all?",
    )),
    Story("fish", ("a + b", "x + c", "y - d"), "", (
        "{name} catches {a} fish on Monday, {b} on Tuesday and {c} on Wednesday. {He} eats {d}. "
        "How many fish are left?",
        "Day by day {name} catches {a}, {b} and {c} fish. Of these, {d} are eaten. "
        "How many fish remain?",
    )),
    Story("flowers", ("a * b", "x + c"), "ab", (
        "{name} plants {a} rows with {b} flowers each. Then {he} plants {c} more flowers. "
        "How many flowers does {name} plant?",
        "There are {a} rows of {b} flowers in a garden, and {name} adds {c} flowers. "
        "How many flowers grow there now?",
    )),
    Story("work", ("a * b", "c * d", "x + y"), "abcd", (
        "{name} works {a} hours for {b} dollars an hour and then {c} hours for {d} dollars an "
        "hour. How many dollars does {name} earn?",
        "For {a} hours {name} is paid {b} dollars an hour, and for {c} more hours {d} dollars an "
        "hour. How much money is that in all?",
    )),
    Story("ages", ("a + b", "x + a"), "", (
        "{name} is {a} years old. A cousin is {b} years older. "
        "How old are they together?",
        "A cousin is {b} years older than {name}, who is {a}. What is the sum of their ages?",
    )),
    Story("water", ("b * c", "a - x", "y + d"), "bc", (
        "A tank holds {a} litres. {name} takes out {b} buckets of {c} litres and then pours in {d} "
        "litres. How many litres are in the tank?",
        "From a tank with {a} litres, {name} fills {b} buckets with {c} litres each. Then {d} "
        "litres are added. How much water is in the tank now?",
    )),
    Story("teams", ("a + b", "x / c", "y + d"), "cd", (
        "{a} girls and {b} boys form {c} equal teams. Each team gets {d} more players. "
        "How many players are in a team?",
        "A class of {a} girls and {b} boys is split into {c} equal teams, and {d} players join "
        "each of them. How many players has a team then?",
    )),
    Story("stickers", ("a / b", "x + c"), "b", (
        "{name} shares {a} stickers equally among {b} children. Each child already had {c} "
        "stickers. How many stickers does each child have now?",
        "{b} children, each with {c} stickers, divide {a} more stickers equally. "
        "How many stickers has each of them now?",
    )),
    Story("trucks", ("a * b", "c * d", "x - y"), "abcd", (
        "{a} trucks bring {b} crates each to a shop. {c} vans take {d} crates each away. "
        "How many crates stay in the shop?",
        "A shop gets {b} crates from each of {a} trucks. Then {c} vans leave with {d} crates each. "
        "How many crates are left in the shop?",
    )),
    Story("race", ("a * b", "x * c"), "abc", (
        "{name} runs {a} miles a day on {b} days a month. "
        "How many miles does {name} run in {c} months?",
        "In each of {c} months, {name} runs on {b} days, {a} miles every time. "
        "How many miles is that in all?",
    )),
    Story("candy", ("a - b", "x / c"), "c", (
        "{name} has {a} candies and eats {b}. {He} puts the rest into {c} bags equally. "
        "How many candies are in each bag?",
        "Of {a} candies, {name} eats {b}. The others are divided equally into {c} bags. "
        "How many candies does a bag hold?",
    )),
    Story("shop", ("a + b", "c - x"), "", (
        "A hat costs {a} dollars and a scarf costs {b} dollars. {name} has {c} dollars and buys "
        "both. How many dollars are left?",
        "{name} has {c} dollars. {He} pays {a} dollars for a hat and {b} dollars for a scarf. "
        "How much money does {name} still have?",
    )),
    Story("books", ("a * b", "x + c", "y / d"), "abd", (
        "{name} has {a} boxes of {b} books and {c} single books. {He} puts them on {d} shelves "
        "equally. How many books are on each shelf?",
        "There are {c} single books and {a} boxes with {b} books each. All are placed equally on "
        "{d} shelves. How many books does a shelf hold?",
    )),
    Story("birds", ("a - b", "x + c", "y - d"), "", (
        "{a} birds sit in a tree. {b} fly away, {c} arrive, and then {d} fly away. "
        "How many birds are in the tree now?",
        "In a tree there are {a} birds. First {b} leave, next {c} come, and at last {d} leave. "
        "How many birds stay?",
    )),
)  # fmt: skip

_ZH = (
    Story("zh-apples", ("b * c", "a + x", "y - d"), "bc", (
        "{name}有{a}个苹果，又买了{b}袋，每袋{c}个，送给别人{d}个。{name}现在有多少个苹果？",
        "{name}原来有{a}个苹果，后来买来{b}袋苹果，一袋{c}个，再送出{d}个。还剩多少个苹果？",
    )),
    Story("zh-bus", ("a - b", "x + c"), "", (
        "公交车上有{a}人，下车{b}人，又上车{c}人。现在车上有多少人？",
        "一辆公交车载着{a}人，到站后{b}人下车，{c}人上车。车上还有几人？",
    )),
    Story("zh-cookies", ("a + b", "x / c"), "c", (
        "{name}上午做了{a}块饼干，下午做了{b}块，平均分给{c}个朋友。每个朋友分到多少块？",
        "{c}个朋友平均分{name}做的饼干，饼干上午有{a}块，下午又有{b}块。每人得到几块？",
    )),
    Story("zh-tickets", ("a * b", "c - x"), "ab", (
        "{name}买了{a}张票，每张{b}元，付了{c}元。应找回多少元？",
        "一张票{b}元，{name}买{a}张，给了{c}元。找回几元？",
    )),
    Story("zh-pages", ("b * c", "a - x"), "bc", (
        "一本书有{a}页，{name}每天看{b}页，看了{c}天。还剩多少页？",
        "{name}看一本{a}页的书，看了{c}天，每天{b}页。没看的还有几页？",
    )),
)  # fmt: skip

STORIES = {"en": _EN, "zh": _ZH}

"""Which encoding gives back a text that is not UTF-8: strict trials, judged by script and by how
frequent letters are.

Every trial that decodes is read as the languages below. A letter costs bits by its rank in a
language, so the right reading costs the least.
"""

import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import islice
from math import log2

from transduct.errors import TransductError

NARROW = (  # the common ones first
    *("latin1", "cp1252", "cp1250", "cp1251", "cp949", "cp932", "gb18030", "euc-jp", "big5"),
    *(
        "cp950",
        "big5-hkscs",
        "cp1253",
        "cp1254",
        "cp1255",
        "cp1256",
        "cp874",
        "iso8859-2",
        "cp1257",
    ),
    *("iso8859-15", "iso8859-7", "koi8-u", "koi8-r", "cp866", "iso8859-5", "iso8859-6", "cp1258"),
    *("cp850", "macintosh"),
)
MARKS = ((BOM_UTF32_LE, "utf-32"), (BOM_UTF16_LE, "utf-16"), (BOM_UTF16_BE, "utf-16"))
WIDE = ("utf-16le", "utf-16be", "utf-32le", "utf-32be")
ISO_2022 = re.compile(rb"\x1b(?:\$\)[A-Z]|\$[@AB]|\([IJ])")  # how its variants begin to shift
PYTHON = {"macintosh": "mac-roman", "big5-hkscs": "big5hkscs"}  # iconv's names -> Python's
CONVERT = "convert the file, for example with: iconv -f"
COUNTED = 64  # blocks in which lines are counted that are not UTF-8
MANY = 100  # lines in another encoding, with none in UTF-8, that are no accident
KEPT = 1 << 20  # bytes of such lines that every trial decodes
JUDGED = 1 << 13  # bytes that are judged
CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
RARER = 0.4  # bits for each encoding that is more common
LIKELY = 15.0  # bits a character; a letter that no language has costs more
# Letters that are not ASCII, by language, the most frequent first.
LATIN = (
    "éèàêçâùîôûëïüœ", "üäößéà", "áéíóñúü¿¡ª", "ãçáéóêíõâàúôü", "èàùìòéóí", "åäöéüà",
    "øåæéòôü", "äöåšž", "áíěéřšžýčůúóťňďĺ", "áíčéšžýúťľôňĺŕäóď", "łąężśóćźń", "áéöóőíüúűä",
    "ăîâșțşţ", "čšžćđ", "ıüşçğöİâîû", "èàéòçíïóúü·", "āīēšūļņžģčķ", "ėšžųįąčūę", "äõüöšž",
    "áíðéóöúþæý", "ëç", "ħġżàċ", "éèïëöáóêüíôç", "áéíóúà",
    "đàảãạáăằắâầấậêềếệìíịôồốộơờớợòóọưừứựùúụủýỳỹởổẫẩẽẻẹểễỉĩỏõửữũ", "ẅŵŷâêîôûäëïöü",
)  # fmt: skip
# Their ASCII letters, the most frequent first.
ASCII = (
    "esaitnrulodcpmvqfbghjxyzkw", "enirstahduclgmobwfkzpvjyxq", "eaosrnidlctumpbgvyqhfzjxkw",
    "aeosridntmuclpvgqbhfzjxkyw", "eaionlrtscdupmvghfbqzjkwxy", "aentrslidomgkvhfupbcjyxwzq",
    "erntsildaogkmvfupbhjycwzxq", "aietslunkmdrvogpjhbfcyxwzq", "eoanitsvlrkdpmuzjyhcbgfxwq",
    "oaeinsrvtlkmcdpuyzjhbgfxwq", "iaeoznrwsctkydpmuljbghfvxq", "eatlnskomzrigydbvhjpufcxwq",
    "eaitnrulcosdpmvfgbzhjxkwyq", "aioenrsjtudkvmplzgbchfxyqw", "aeinrldktmyusobzgcvhpfjxqw",
    "eaosrilntudcpmbvgfqhjxyzkw", "aisetrunmkodlpvjzgbcfhxyqw", "iasteunrokmldpvgjbzycfhxwq",
    "aeistlunkdmorvgpjhbfcyzxwq", "arniesutlgmkfhvodbpjyxcwzq", "etiarnshuomkdljqpvgzbyfcxw",
    "ailetnumjrsbdkfxhopqzgwyvc", "enatirodslghvkmubpwjzcfxyq", "ainehrsctlogdmubfpxyjkqvwz",
    "nhtiacgoumlvypbdrskexqfjwz", "adeinrlygwostfhucbmpkjvxzq",
)  # fmt: skip
OTHERS = (
    "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё", "оаинвиертскідлупмяьзгбчйїхжшєщюцфґ",
    "аоеитнрсвлдкпмзгяъубчщжшйхцюфьѝ", "аоиенрсјтудкмвплзбгчшћцжњљђхџфѓќѕѐѝ",
    "аоеініклнрсўтвдмпузыягьбчшжйхэцёюф", "αοιετσνηυρπκμλωςδγάίχέόήθφύβώξζψϊϋ",
    "יוהלאתבמרשנםדקעחכפצגסטזןךףץְִֵָּ", "ايلنمتروبةعدفسهكقحأجشصطخىضذإثغءزئظآؤيکپچگژ،؛؟",
    "ایرندهمتوسبکشگزپخفقعجلحآچطصضغذظئثژءأ،؛؟",
    "านรอกเงมยลวดทสตะปบคหแจพชขใไผโณซถธศษฉฟญ่้ัีิุึูื็์ำ",
    "اےیکنرہوتسمدلبجںھگٹچپفعشحقخطصزغضذڈئڑظثآ۔،",
)  # fmt: skip
EAST_ASIAN = (
    "이다는에의을가고하지도를사한은기아리로어그서시자대나인일라들있부과수정만보해구제원장스에상전게여주것안면무우으니마유세국성했소적와용오신비문야조치미관더년발실공"
    "거생습회중말선때데화터물경저각간트학동내연위모동방요분람것없까려었았집한네입책업월많출통계열된될좋날당민같알러건식네름호양던점란개속찾늘명군작본타두단길심질금글"
    "음너또급차직래살재설럼였디환히얼목행교바밖형편결몸린울강반",
    "の。、にをはたがでてとしいれなかるあさこもすらっうまきよそりくんだどけめえせわみやおつばじほろずごげびぶべぎゃょゅへねちむざユンスーイトルリアラクドシロレタジテ"
    "コマッフグカムプサメデオキ・「」一人日大年国本中出私上生分見行時子思言家会前事気今者手合自間地方彼学女何話物先下長心場々",
    "的。，一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起还发成事只作当想看文无开手十"
    "用主行方又如前所本见经头面公同三已老从动两长知样现进些此间但四国法全明意点定情高其实把给向被水月很吧吗呢",
    "的。，一是不了人我在有他這中大來上國個到說們為子和你地出道也時年得就那要下以生會自著去之過家學對可她裡後小麼心多天而能好都然沒日於起還發成事只作當想看文無開手十"
    "用主行方又如前所本見經頭面公同三已老從動兩長知樣現進些此間但四法全明意點定情高其實把給向被水月很吧嗎呢",
)  # fmt: skip
PUNCTUATION = "„“”‚‘’«»‹›–—…•€§°·\xa0№￼。、，「」『』《》（）：；！？．　・"


@cache
def _languages() -> tuple[tuple[bool, dict[str, float]], ...]:
    """For each language whether ASCII letters stand in its words, and the bits of each letter."""
    made = []
    for number, letters in enumerate((*LATIN, *OTHERS, *EAST_ASIAN)):
        ranked = dict.fromkeys(letters)
        share = 0.5 if letters in EAST_ASIAN else 0.9
        total = sum(1 / (rank + 3) for rank in range(len(ranked)))
        bits = {letter: -log2(share / (rank + 3) / total) for rank, letter in enumerate(ranked)}
        if number < len(LATIN):  # most letters of their texts are ASCII
            bits = {letter: cost + 2 for letter, cost in bits.items()}
            bits |= {letter: 6 + (rank - 7) / 4 for rank, letter in enumerate(ASCII[number])}
        made.append((letters not in OTHERS, {**dict.fromkeys(PUNCTUATION, 9.0), **bits}))
    return tuple(made)


def _cost(text: str) -> float:
    """The bits that a text costs in the language that it fits best."""
    pairs = Counter(zip(" " + text, text))
    costs = ([count * each for each in _bits(*pair)] for pair, count in pairs.items())
    return min(map(sum, zip(*costs)), default=0.0)


@lru_cache(1 << 14)
def _bits(before: str, letter: str) -> list[float]:
    """The bits of a letter after another, in each language."""
    languages, lower = _languages(), letter.lower()
    if letter in "\t\r\n\f" or " " <= letter <= "~":
        mixed = letter.isalpha() and before.isalpha() and not before.isascii()
        return [14.0 if mixed and not mixes else bits.get(lower, 6.0) for mixes, bits in languages]
    kind = unicodedata.category(letter)
    if kind in ("Cc", "Cn", "Co", "Cs", "Cf"):
        return [14.0 if letter in "\u200c\u200d\u200e\u200f\xad" else 40.0] * len(languages)
    capital = 0.0 if lower == letter else 9.0 if before.islower() else 1.5
    mixed = before.isalpha() and before.isascii() and kind[0] == "L"
    return [
        (bits.get(lower, 0.0) or (17.0 if kind[0] in "LM" or letter in bits else 20.0))
        + capital
        + (8.0 if mixed and not mixes else 0.0)
        for mixes, bits in languages
    ]


def guessed(data: bytes) -> str:
    """The name, for iconv, of the encoding that gives back a text; latin1 if nothing fits."""
    names = NARROW + WIDE
    trials = _trials(data, names)
    return min(
        trials, key=lambda name: _cost(trials[name]) + RARER * names.index(name), default="latin1"
    )


def shifting(data: bytes) -> tuple[int, str] | None:
    """Where ISO 2022 first shifts in bytes, and the name of its variant; None if it does not."""
    found = ISO_2022.search(data)
    if found is None:
        return None
    variant = "jp" if found[0][2:3] != b")" else "kr" if found[0].endswith(b"C") else "cn"
    return found.start(), f"iso-2022-{variant}"


def wide(data: bytes) -> str:
    """The encoding of two or four bytes a character that bytes without a mark have; "" if none.

    As UTF-8 it must make less sense, with more than a lone zero byte in a line of text.
    """
    as_utf8 = data[:JUDGED].decode(errors="replace")
    if len(CONTROLS.findall(as_utf8)) < 2 or (name := guessed(data)) not in WIDE:
        return ""
    text = _trials(data, (name,))[name]
    cost = _cost(text)
    return name if cost < _cost(as_utf8) and cost < LIKELY * len(text) else ""


def _trials(data: bytes, names: Sequence[str]) -> dict[str, str]:
    """The readings of bytes in those encodings that they are in; a line feed may be cut."""
    found = {}
    for name in names:
        size = 1 if name in NARROW else 2 if "16" in name else 4
        if (whole := len(data) // size * size) and whole + 1 >= len(data):
            with suppress(UnicodeDecodeError):
                data[:whole].decode(PYTHON.get(name, name))
                text = data[: min(whole, JUDGED)].decode(PYTHON.get(name, name), "ignore")
                found[name] = unicodedata.normalize("NFC", text)
    return found


def judge(
    error: UnicodeDecodeError,
    number: int,
    blocks: Iterable[bytes],
    name: str,
    marked: str,
    utf8: bool,
    strict: bool,
    whole: bool,
) -> None:
    """Refuse bytes that are not UTF-8, of which `error` has the first; unless `strict`, only where
    most lines are not, or many and none with other letters is.

    Args:
        number: the number of the first line in the blocks; all before are UTF-8.
        marked: the encoding that a byte order mark names, if any.
        utf8: whether there are letters before, which are not ASCII.
        whole: whether the blocks are of a file; a stream may send its lines one by one.

    Raises:
        TransductError: says whether all of the file is in another encoding, and in which, or only
            some lines.
    """
    data = error.object
    line = number + data.count(b"\n", 0, error.start)
    total, others, wrong, kept = number - 1, 0, 0, b""
    for block in islice(blocks, COUNTED):
        for each in block.removesuffix(b"\n").split(b"\n") if block else ():
            total += 1
            try:
                others += not each.isascii() and bool(each.decode())
            except UnicodeDecodeError:
                wrong += 1
                kept += each + b"\n" if len(kept) < KEPT else b""
    other = not utf8 and others * 10 < wrong  # all letters but ASCII are in another encoding
    most = wrong * 2 > total and (whole or total > 1)
    if not (strict or marked or most or (other and wrong >= MANY)):
        return
    encoding = marked or guessed(kept)
    convert = f"{CONVERT} {encoding} -t utf-8"
    if not strict and not marked:
        found = f"{wrong:,} of {total:,} lines are not UTF-8"
        raise TransductError(f"{found}; {convert}", file=name, line=line)
    place = error.start - data.rfind(b"\n", 0, error.start)
    found = f"byte {place} is 0x{data[error.start]:02x}, which is not UTF-8"
    if marked or other:
        problem = TransductError(f"{found}; {convert}", file=name, line=line)
        raise problem.at(skippable=not (marked or most or wrong >= MANY)) from error
    problem = TransductError(
        f"{found}, as in {wrong:,} of {total:,} lines; write such lines again in UTF-8 (they seem "
        f"to be {encoding})",
        file=name,
        line=line,
    )
    raise problem.at(skippable=True) from error

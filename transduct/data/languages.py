"""Codes and names of languages: ISO 639, FLORES and English, and the nearest one to a wrong one.

Published models of many languages name these in their own ways: ko, kor_Hang, ko_KR. Here each
language has one key, so that any of its names finds the model's own.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache

from transduct.errors import TransductError

# Of each language its codes, then its names. Where ISO 639-3 has both a macrolanguage and the
# variety that models mean by it, both codes stand here.
TABLE = """
ace|Acehnese
acm|Mesopotamian Arabic
acq|Ta'izzi-Adeni Arabic
aeb|Tunisian Arabic
af afr|Afrikaans
ajp|South Levantine Arabic
ak aka|Akan
am amh|Amharic
an arg|Aragonese
apc|North Levantine Arabic
ar arb ara|Arabic|Modern Standard Arabic
ars|Najdi Arabic
ary|Moroccan Arabic
arz|Egyptian Arabic
as asm|Assamese
ast|Asturian
awa|Awadhi
ay ayr aym|Aymara|Central Aymara
az azj aze|Azerbaijani|North Azerbaijani
azb|South Azerbaijani
ba bak|Bashkir
bm bam|Bambara
ban|Balinese
be bel|Belarusian
bem|Bemba
bg bul|Bulgarian
bho|Bhojpuri
bi bis|Bislama
bjn|Banjar
bn ben|Bengali|Bangla
bo bod tib|Tibetan
br bre|Breton
bs bos|Bosnian
bug|Buginese
ca cat|Catalan|Valencian
ceb|Cebuano
cjk|Chokwe
ckb|Central Kurdish|Sorani
co cos|Corsican
crh|Crimean Tatar
cs ces cze|Czech
cv chv|Chuvash
cy cym wel|Welsh
da dan|Danish
de deu ger|German
dik din|Dinka
dv div|Dhivehi
dyu|Dyula
dz dzo|Dzongkha
ee ewe|Ewe
el ell gre|Greek|Modern Greek
en eng|English
eo epo|Esperanto
es spa|Spanish|Castilian
et est ekk|Estonian
eu eus baq|Basque
fa pes fas per|Persian|Farsi|Western Persian
ff ful|Fulah
fi fin|Finnish
fj fij|Fijian
fo fao|Faroese
fon|Fon
fr fra fre|French
fur|Friulian
fuv|Nigerian Fulfulde
fy fry|Western Frisian|Frisian
ga gle|Irish
gaz om orm|Oromo|West Central Oromo
gd gla|Scottish Gaelic|Gaelic
gl glg|Galician
gn grn|Guarani
gu guj|Gujarati
gv glv|Manx
ha hau|Hausa
haw|Hawaiian
he heb iw|Hebrew
hi hin|Hindi
hmn|Hmong
hne|Chhattisgarhi
hr hrv|Croatian
ht hat|Haitian|Haitian Creole
hu hun|Hungarian
hy hye arm|Armenian
ia ina|Interlingua
id ind|Indonesian
ig ibo|Igbo
ilo|Ilocano|Iloko
io ido|Ido
is isl ice|Icelandic
it ita|Italian
ja jpn|Japanese
jv jav jw|Javanese
ka kat geo|Georgian
kab|Kabyle
kac|Jingpho
kam|Kamba
kas ks|Kashmiri
kea|Kabuverdianu
kg kon|Kikongo|Kongo
ki kik|Kikuyu
kk kaz|Kazakh
kl kal|Greenlandic|Kalaallisut
km khm|Khmer|Central Khmer
kmb|Kimbundu
kmr kur ku|Kurdish|Northern Kurdish|Kurmanji
kn kan|Kannada
knc kr kau|Kanuri|Central Kanuri
ko kor|Korean
ky kir|Kyrgyz|Kirghiz
la lat|Latin
lb ltz|Luxembourgish
lg lug|Ganda|Luganda
li lim|Limburgish
lij|Ligurian
lmo|Lombard
ln lin|Lingala
lo lao|Lao
lt lit|Lithuanian
ltg|Latgalian
lua|Luba-Kasai
luo|Luo
lus|Mizo
lv lvs lav|Latvian
mag|Magahi
mai|Maithili
mg plt mlg|Malagasy|Plateau Malagasy
mi mri mao|Maori
min|Minangkabau
mk mkd mac|Macedonian
ml mal|Malayalam
mn khk mon|Mongolian|Halh Mongolian
mni|Meitei|Manipuri
mos|Mossi
mr mar|Marathi
ms zsm msa may|Malay|Standard Malay
mt mlt|Maltese
my mya bur|Burmese
ne npi nep|Nepali
nl nld dut|Dutch|Flemish
nn nno|Norwegian Nynorsk|Nynorsk
no nb nob nor|Norwegian|Norwegian Bokmål|Bokmål
nso ns|Northern Sotho|Pedi
nus|Nuer
nv nav|Navajo
ny nya|Nyanja|Chichewa
oc oci|Occitan
or ory ori|Odia|Oriya
os oss|Ossetian
pa pan|Punjabi|Panjabi|Eastern Panjabi
pag|Pangasinan
pap|Papiamento
pl pol|Polish
ps pbt pus|Pashto|Southern Pashto
pt por|Portuguese
qu quy que|Quechua|Ayacucho Quechua
rn run|Rundi|Kirundi
ro ron rum mo|Romanian|Moldovan
ru rus|Russian
rw kin|Kinyarwanda
sa san|Sanskrit
sah|Yakut|Sakha
sat|Santali
sc srd|Sardinian
scn|Sicilian
sd snd|Sindhi
se sme|Northern Sami
sg sag|Sango
shn|Shan
si sin|Sinhala|Sinhalese
sk slk slo|Slovak
sl slv|Slovenian|Slovene
sm smo|Samoan
sn sna|Shona
so som|Somali
sq als sqi alb|Albanian|Tosk Albanian
sr srp|Serbian
ss ssw|Swati|Swazi
st sot|Southern Sotho|Sesotho
su sun|Sundanese
sv swe|Swedish
sw swh swa|Swahili
szl|Silesian
ta tam|Tamil
taq|Tamasheq
te tel|Telugu
tg tgk|Tajik
th tha|Thai
ti tir|Tigrinya
tk tuk|Turkmen
tl tgl fil|Tagalog|Filipino
tn tsn|Tswana
to ton|Tongan
tpi|Tok Pisin
tr tur|Turkish
ts tso|Tsonga
tt tat|Tatar
tum|Tumbuka
tw twi|Twi
ty tah|Tahitian
tzm|Central Atlas Tamazight|Tamazight
ug uig|Uyghur
uk ukr|Ukrainian
umb|Umbundu
ur urd|Urdu
uz uzn uzb|Uzbek|Northern Uzbek
vec|Venetian
vi vie|Vietnamese
war|Waray
wo wol|Wolof
xh xho|Xhosa
yi ydd yid|Yiddish|Eastern Yiddish
yo yor|Yoruba
yue|Cantonese|Yue Chinese
za zha|Zhuang
zh zho chi cmn|Chinese|Mandarin
zu zul|Zulu
"""
# The script meant where a model has several of a language and none is said.
SCRIPTS = {
    **{"ace": "latn", "ar": "arab", "bjn": "latn", "kas": "arab", "knc": "latn", "min": "latn"},
    **{"taq": "latn", "zh": "hans", "sr": "cyrl", "uz": "latn", "az": "latn", "pa": "guru"},
}
# A region that says the script.
REGIONS = {"cn": "hans", "sg": "hans", "tw": "hant", "hk": "hant", "mo": "hant"}
SHOWN = 12  # the most codes in a message
PARTS = re.compile("[-_ ]")


@cache
def _keys() -> dict[str, str]:
    """The key of each code and each name: the first code of its line in the table."""
    found: dict[str, str] = {}
    for line in TABLE.split("\n"):
        codes, *names = line.split("|")
        for each in (*codes.split(), *(name.lower() for name in names)):
            found.setdefault(each, codes.split()[0])
    return found


@cache
def _names() -> dict[str, str]:
    """The English name of each key."""
    lines = [line.split("|") for line in TABLE.split("\n") if line]
    return {codes.split()[0]: names[0] for codes, *names in lines}


def is_language(text: str) -> bool:
    """Whether a text is a code, with a script or region or without, or a name of a language."""
    low, keys = text.strip().lower(), _keys()
    return low in keys or (" " not in low and PARTS.split(low)[0] in keys)


def named(code: str) -> str:
    """The English name of the language of a model's own code, or "" if it is in no list here."""
    return _names().get(parts_of(code)[0], "")


def parts_of(text: str) -> tuple[str, str]:
    """The key of the language in a code or name, and the script it says, or ""."""
    low = text.strip().lower()
    keys = _keys()
    if low in keys:
        return keys[low], ""
    first, *rest = PARTS.split(low)
    script = next((part for part in rest if len(part) == 4 and part.isalpha()), "")
    region = next((REGIONS[part] for part in rest if part in REGIONS), "")
    key = keys.get(first, first)
    return key, script or (region if key == "zh" else "")


def find(given: str, codes: Sequence[str]) -> str:
    """The code of a model for a language that is given by any of its codes or names.

    Raises:
        TransductError: the model has no such language; the nearest is named.
    """
    exact = {code.lower(): code for code in codes}
    low = given.strip().lower()
    if low in exact or low.replace("-", "_") in exact:
        return exact.get(low) or exact[low.replace("-", "_")]
    key, script = parts_of(given)
    same = [(code, parts_of(code)[1]) for code in codes if parts_of(code)[0] == key]
    fitting = [(code, own) for code, own in same if not script or own in ("", script)]
    wanted = script or SCRIPTS.get(key, "")
    if fitting:
        return next((code for code, own in fitting if own == wanted), fitting[0][0])
    raise TransductError(f"unknown language '{given:.40}'{nearest(low, codes)}")


def nearest(given: str, codes: Sequence[str], known_are: str = "this model has") -> str:
    """The end of a message: the nearest language, if one is near, and some that there are."""
    known = {code.lower(): code for code in codes}
    names = {named(code).lower(): code for code in codes if named(code)}
    keys = {key: code for code in codes for key in _codes_of(parts_of(code)[0])}
    close = get_close_matches(given, [*known, *names, *keys], 1, 0.5)
    shown = listed(codes)
    if not close:
        return f"; {known_are} {shown}"
    code = known.get(close[0]) or names.get(close[0]) or keys[close[0]]
    name = f" ({named(code)})" if named(code) else ""
    return f"; the nearest is '{code}'{name}, of {shown}"


@cache
def _codes_of(key: str) -> tuple[str, ...]:
    return tuple(each for each, own in _keys().items() if own == key and len(each) <= 3)


def listed(codes: Iterable[str]) -> str:
    """Codes for a message, abridged."""
    every = [*codes]
    more = f" and {len(every) - SHOWN} more (see: transduct describe)"
    return ", ".join(every[:SHOWN]) + more * (len(every) > SHOWN)

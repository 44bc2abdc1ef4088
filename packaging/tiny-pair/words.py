"""The closed word lists that the generated tasks are made of."""

# ruff: noqa: SIM905
from __future__ import annotations

COMMON: tuple[str, ...] = tuple(
    """
    apple river stone garden window silver morning paper bottle market village winter summer
    bridge candle forest island letter mirror ocean pencil planet pocket rabbit ribbon saddle
    shadow spring street sugar table thunder ticket tiger tower train travel tunnel valley velvet
    violin walnut water whisper yellow zebra anchor basket beacon blanket branch breeze bucket
    butter button cabin camera canyon carpet castle cattle cherry circle cloud coffee copper corner
    cotton cradle crystal curtain desert diamond dinner doctor dragon dream eagle earth engine
    evening falcon family farmer feather fence field finger flame flower fountain friend frost
    gentle ghost giant ginger glass glove golden grain grape green guitar hammer harbor hazel heart
    hidden hollow honey horse hunter jacket jungle kettle kitchen ladder lantern lemon library
    light lily linen lion little lunar maple marble meadow melody memory metal midnight mint
    monkey moon mountain museum music narrow needle night noble north number oak olive onion
    orange orchard owl paint palace panda parade parrot pebble pepper piano picture pigeon pilot
    pine plaza plum pond poplar prairie prince purple puzzle quartz queen quick quiet rain raven
    record red road robin rocket rose round royal sailor salmon salt sand school scout season
    secret seed shell shelf ship shore signal silent simple singer sister skate sleep small smoke
    snow soft soldier song south spark spice spider spoon square star station steam steel storm
    story strong sunset swan sweet sword teacher temple thread tide timber tomato torch trail tree
    trumpet tulip turtle twelve uncle under upper urban vanilla vapor vessel violet voice wagon
    walk wall warm watch wave west whale wheat wheel white wild willow wind wing wise wolf wonder
    wood wool world yard year young zero above after again before begin below bring build carry
    change clean close count cover cross dance drive early every fill find first follow gather
    give grow hear hold jump keep kind large last learn leave listen long look make meet move near
    never often open over pass place plant play point pull push reach read rest ride right rise run
    send serve share shine short show sing sit slow speak stand start stay stop swim take talk
    teach tell think throw touch turn visit wait wash wear wide wish work write
    """.split()
)

SYLLABLES: tuple[str, ...] = tuple(
    """
    ba be bi bo bu da de di do du fa fe fi fo ga go gu ha he hi ho ja jo ka ke ki ko la le li lo lu
    ma me mi mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi
    vo wa we za ze zo bran cor dal fen gar hol jor kel lan mar nor pel quin ros sten tor ven wil yar
    """.split()
)

FIRST_NAMES: tuple[str, ...] = tuple(
    """
    Anna Ben Carla David Elena Felix Grace Hugo Irene Jack Karen Liam Maria Noah Olga Peter Quinn
    Rosa Simon Tara Umar Vera Walter Xenia Yusuf Zoe Alice Boris Clara Daniel Emma Frank Gina Henry
    Isla Jonas Kate Leo Mona Nina Oscar Paula Ralph Sara Tom Ursula Victor Wendy Amir Lucy Marco
    Priya Chen Yuki Omar Fatima Ivan Sofia Diego Ingrid
    """.split()
)

LAST_NAMES: tuple[str, ...] = tuple(
    """
    Moore Smith Garcia Keller Brown Rossi Novak Silva Young Hill King Wright Baker Carter Cooper
    Evans Fisher Foster Gray Hughes Jensen Kim Larsen Lopez Meyer Nelson Olsen Parker Quist Reed
    Sato Tanaka Vogel Walsh Weber Wood Adams Bell Clark Dunn Ellis Ford Grant Hart Irwin Jones
    """.split()
)

CITIES: tuple[str, ...] = tuple(
    """
    Oslo Paris Berlin Madrid Rome Vienna Prague Lisbon Dublin London Boston Chicago Denver Dallas
    Seattle Toronto Sydney Tokyo Osaka Seoul Delhi Cairo Lagos Nairobi Lima Bogota Quito Santiago
    Helsinki Warsaw Athens Geneva Zurich Milan Porto Bergen Leeds Austin Miami Phoenix
    """.split()
)

JOBS: tuple[str, ...] = tuple(
    """
    teacher doctor farmer pilot nurse baker lawyer painter engineer driver writer singer chef
    plumber carpenter librarian dentist designer gardener mechanic
    """.split()
)

COLOURS: tuple[str, ...] = tuple("red blue green yellow purple orange black white silver golden brown pink".split())

PRODUCTS: tuple[str, ...] = tuple(
    """
    lamp chair table laptop phone camera guitar bicycle jacket backpack watch printer monitor
    keyboard tent kettle blender drill helmet sofa mirror clock radio speaker
    """.split()
)

MONTHS: tuple[str, ...] = tuple(
    """
    January February March April May June July August September October November December
    """.split()
)

CODE_NOUNS: tuple[str, ...] = tuple(
    """
    item value count total index result data list name user file line key node row column price
    score size width height path text token buffer cache config record entry limit offset start end
    queue stack table field group order event message task timer image pixel color angle speed
    weight level page query filter handler worker request response session
    """.split()
)

CODE_VERBS: tuple[str, ...] = tuple(
    """
    get set find make build load save parse read write update compute check count sort merge split
    add remove print send fetch clean apply convert create delete format handle init open reset run
    scan start stop swap test track trim
    """.split()
)

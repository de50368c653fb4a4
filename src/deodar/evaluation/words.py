"""Word lists for the seedling's practice tasks, and the split that keeps some of them unseen.

Who calls it: `deodar.evaluation.tasks`. What must hold: a word's side (training or held out) is a
function of the word alone, so that no edit of a list moves another word across; the evaluation
draws from the held-out side only, and no training sample contains a held-out word as a name.
Nouns, verbs and adjectives are the most frequent single words of WordNet 3.0's sense counts.
"""

# ruff: noqa: SIM905
from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

HELD_OUT_PERCENT = 30

NOUNS = """
    person group man location time year way day youth thing people eye form life head face part
    hand world area child number problem boy place line state foot figure water friend voice
    body field side night soldier case house moment idea girl point program question school mind
    word regiment interest woman type end surface nothing door action family fact result value
    study church room kind position effect country job wife home material officer city light
    cell spirit hour power level system reason arm rate ground history month tree week purpose
    amount company age air horse name century pressure sense feeling thought business course
    mother plant force method trial effort wall section law period road earth office society
    picture activity center minute money process street morning condition product cost fellow
    game leg evidence heart mass situation community enemy distance right table today window
    battle sound space student father fear stress view meaning town attitude fire member range
    attention direction data matter nature quality doctor art function land car manner patient
    size trouble letter paper region religion scene success theory act industry training one
    price source statement wage audience back degree movement pattern record smoke stage
    election event husband sort animal anode basis corner tone example item list mouth music
    shoulder words film growth percent army story control feature party piece subject technique
    means sample strength floor policy property wave book hair shelter step treatment color
    education role summer employee language lip object order sun bed procedure rest comrade inch
    knee pain payment reaction river term chance character mile much season shot dust finger kid
    song text top afternoon analysis building court existence memory more particle research
    series site unit image operation shape team volume board ear emotion manager rule son farm
    influence nation ship skill sky bank element equipment future length past sale ball column
    energy phase structure yard argument behavior coffee detail hall newspaper radiation service
    south allotment captain college dream fig income knowledge loss model muscle sight artist
    aspect author clothes factor noise pound style tax arc command desire edge kitchen title
    trade tradition woods brother chapter dog half lack onset teacher tooth victory cloud depth
    grass intensity mission news portion presence tissue writer america class contact device
    front general labor plane sea weight branch england flower glass hotel judgment march
    meeting oxygen public reality sentence soil block contrast decision district evening extent
    forest machine marriage objective operator relief speed stock throat award belief bond box
    camp chair concept facility variation worker beginning crowd culture fool principle score
    village american blow brain bullet chest failure flag flow goal men pair parent progress
    roof spring variety west capacity companion component county defense dollar faith guy hill
    neck page police practice reference serum solution spot stem tube absence agent bill colonel
    danger exercise heat response staining stone sunday task truth two affair apartment balance
    battery benefit chlorine fence fund nose opinion planning provision rank reading science
    second species tale breath circle curve date instant marketing message moon president shadow
    silence store stream trip vision authority bird bottle career coat comment couple dinner
    director doubt error expense hat hero hole illusion lady lung notion rain reader soul speech
    union wind account anxiety citizen club darkness farmer food fraction lot may politics
    services steps thyroid ability content detective diameter europe liberal maturity monday
    network row scale secretary stomach struggle suffering weakness agency band duty extension
    folklore freedom gesture gram market north painting personnel respect saline shoe square
    troops valley chicken emphasis exception firm flight fluid good guest june milligram movie
    official peace pond rage rear saturday sheet will agreement appeal bit candidate catholic
    cattle chicago congress customer decade detergent dirt fashion fighting frequency hospital
    left motion passage pleasure pocket relation shooting wagon years beam composer desk
    division english exchange host humor joy owner player project snow thousand threat tomorrow
    unity winter wood wound advantage anger baseball blanket cup dark daughter economy flux
    grade hen holder ice jury justice leader majority mud neighbor occasion papa protein radio
    security self session sin sketch station vacation virginia while apparatus april barn
    bedroom blue camera capital cheek choice conjugate credit debate discovery drama female
    hundred identity incident instance november planet powder quantity resource sequence skin
    standard substance tendency tsunami warning wing wire writing article bar chain confusion
    contract cow devil formation health key king metal milk mistake pace path pool porch queen
    ratio shear status steel sympathy values velocity arrow bee category coach coast comedy cop
    despair doctrine egg expert finding fist flesh fog guard historian injury leaf meal mood
    observer oxidation paris park plot reduction rock salesman sister snake spectrum staff
    symbol tongue tool trend truck weather atom brigade creature crew curiosity dallas discharge
    effluent entry formula funds garden gate hearing height holmes horror imitation interval
    loan pansy professor recording safety sewage shade shell sir strip sum target taste
    telephone tension three total tsh whisky advice anaconda basement beauty beer being bench
    bottom campaign cat clarity conflict context current dignity entrance factory friday georgia
    gold hatred hut impact liquor machinery motive musician mystery necessity outcome pitcher
    proof proposal seat september shore stick talent tangent theology tumor uniform antibody
    baby cent collage committee crisis cuba density driver editor frame impulse iodine iron
    journey landscape lesson load magnitude master mexican mine mixture mountain novel oath
    pistol plate red root seed signal someone sport strain tent texture utopia veteran wheel
    active antenna bag brass bunk cigarette cloth concrete deduction din disk drinking february
    first fish folk hills horizon hunting inning interior jacket linguist luck magazine mess
    million nucleus origin outlook producer residence rhythm selection sensation sidewalk suburb
    suit yesterday ace acre aircraft alaska approval august avocado barrel catcher ceremony
    champion clock combat copy courage disaster dozen essay fate feeding flame four glory
    gradient graph haste helium insight invention island jazz laughter lawyer legend liquid
    middle nest objection oil painter partner plato plenty plug priest principal scope shame
    sheep shirt slope solid stairs stall star stranger studio supplies tip toe troop vehicle
    version yes actor adam beach boat boot brow button cap cheer chin comfort core creation
    december dimension drawing employer enough era fiber fiction firing foe fruit gift grounds
    habit horn lamp lawn lord mars missile mouse myth opium pile poem poet pride profile
    prospect quack realism rebel relations rumor saddle salt sphere supper symptom texas theme
    theorem traffic universe viewpoint washing addition amazement applicant assurance bible bone
    boston bumblebee cafeteria camping cleaning clergyman commander damage dot engineer evil
    exposure fault fun german goods guidance holiday homer honey indicator infantry intention
    july laos london maid mechanism mode morality musketry october orbit papers phone phrase pot
    railroad rider rousseau route routine sentiment shock spectator string stuff suspicion
    teaching third thunder thursday times vector vein vertex voyage wealth weekend accident
    adventure angle artillery awareness bell brand breakfast canteen canvas ceiling chaos dawn
    dialysis dish east electron engine fabric farming flood focus garage hawaii highway hours
    human january joke lagoon little liver lunch lyric maximum medium melody mob most norm patch
    playing poetry pole prayer prisoner private ray redcoat round screen sculpture sector
    speaker squad steeple strategy straw tape teenager territory tray tuesday tune vacuum vase
    vessel wednesday whole wit worship aerator aerosol amateur ambition antigen arms belt boss
    bridge builder cannon carrier childhood clay clue cluster collector crest criticism disc
    doorway downtown dwelling emergency entity envelope estate fee football footstep furniture
    germany gloom grace gray hands hay impurity lap league leather lightning living manifold
    medicine micelle millions mimesis nerve opening orchestra passion patrol peak policeman
    posse post pottery preaching prestige privilege quarter radar rating receiver reception
    roadway salvation scar scheme shower socialism storm suitcase sweat syllable testimony
    testing theatre thicket thinking triumph verb violation wine wisdom adult africa belly brood
    bunch camper christian client clump code cold commerce consumer cycle dealer deed democracy
    departure deputy elbow excuse expansion fallout fan fighter fortune france fury gang giant
    grave greek guam guilt harmony heel howl humanity hunger indian killing leaders liberty long
    lots loyalty male marble mate minister mist navy now opera organ pacific pbs physics piano
    pipe plasma pollen posture potential prize rebellion relative reporter ritual russia russian
    sake salary sand senate setting settler shop shutter spark spectacle stimulus survival tail
    tank taxpayer theater thief threshold ton trooper usage volley voltage warfare accuracy
    admission affairs affection agony albumin analogy analyst applause architect banker barrier
    beef birth birthday bomber burden bush canada cash cellar chart chimney china clerk clothing
    colony composite contempt contest cooking corporal corridor cowboy dec deck delight denial
    detroit diarrhea dice distress educator enjoyment eve extreme flatness fraud french fringe
    fur gadget gentleman golf governor halfback haze ideal infection inquiry insurance inventory
    jaw kidney layer listener log lover mayor menace mineral minimum mirror molecule momentum
    musket nov obstacle odor ohio organism outfit panic parlor pastor patience pen phosphate
    pity placement plank precision pupil rabbit rag reb removal resonance retention reward rice
    secret selling sergeant servant soap storage surgeon sweden sword thanks therapist thigh
    thyroxine tracing track tragedy trap treasury virtue viscosity vitality voting well worth
    wrist zero alarm andrena anecdote angel arrival atlanta attorney axe badness baltimore
    basket bath bay beard blaze bloat blockade bourbon brick buckskin buffer bundle cabin card
    carpenter cathode chairman chamber chapel charm claimant climate colleague commotion
    commuter conductor contour costume cotton council critic crop curtain cyclist dancer denver
    diet diffusion dilemma divorce dusk endeavor equation etcetera explosion fever forehead fork
    fragment funeral gnp gospel grove handful harbor harm headache heap heaven heritage
    household illinois immediacy insect inside ion irony ivory japan killer lecture livestock
    lookup maker margin marksman martyr merchant merit meteorite miracle misery missouri monkey
    narrative nephew neurosis noon ocean orange output outside passing pegboard penalty
    performer pillow pitching platoon plight port portrait preacher radical radish rail ration
    refund remainder reproach revenge rookie scholar shelf shopping specimen stature stroke
    subspace sunlight surplus synthesis temple ten thrill tire titer tub utility visitor
    voltaire warsaw willow workbench workshop wrath yellow yokuts absurdity aegean ailment
    allusion ambiguity amendment anatomy anionic ankle argon assembly assistant athlete autumn
    beebread best blade blind blindness blot bluff booking border boredom bronchus buddy budget
    calf cartridge catkin caution cavalry chore cigar circuit coin collision communion complex
    consent continent cooling creek crystal custom destiny dialogue diaphragm dominance donor
    dugout duration ecstasy ego enzyme episode faculty fame foliage follower foreigner freeway
    frontage gap gathering glimpse goodness green herd hip hoof hunter hymn iodide jupiter
    kitten landing less library license making map mercy messenger meter midnight min moisture
    monopoly monster monument motif mound obscurity ordering packet parameter peasant pencil
    physician pig pill planter platform poland potter poverty priority profit publisher purse
    quirt recovery reflector relevance republic resistor restraint saloon satire saving
    scientist scorn sensor shaft sheriff silk silver single sixties skiff slice spanish spiral
    spur statistic stillness submarine tears temper textile therapy things topic tract trance
    trustee uncle valor vine voter wax works yank young academy accent access algae amplitude
    anguish ant antelope antiserum appendix assassin axis babe bandage bark bathroom behalf
    berlin binding bishop blackness blossom bough boundary boyhood breed breeze bristle brooklyn
    bubble bulk cage carbon cart champagne charcoal chemical chief chill closet commune
    complaint computer consonant corn corps counter credo cruelty dancing debt defect detection
    diagram dialect dilution dipole dismay disposal domain dosage dose dragon drought drugstore
    drum earnings efficacy eggs elite emission eternity excess execution exertion favorite feat
    feather feelings fibrosis filling finale firearm fisherman flavor flock frenzy frontier gag
    gland glove goat grouping happiness highroad hollywood honeybee hormone horseman hue hunch
    hydrogen illness incentive inference intellect isolation italy junior ketosis larva ledger
    lemon lighting limb litter loading lobby lobe locality losses luggage lumber luxury
    magnetism malaise mama manhattan manometer mat meadow mercury merger meteor motor mustache
    net nightclub novelist occupant opponent overcast ownership oxen package parallel paste
    petition pilot pine pleura pope profits province pursuit pushup quackery quarters rabbi
    radius readiness realm rehearsal rejection reminder resident rib ribbon ridge rome rotor
    royalty rpm runner rushing safe saint sandwich script senator septum shipment shortage shunt
    singing six skirt slit sonar specter spell sportsman spray stability stove stump stupidity
    successor symmetry tea then tide timber timing tomb torso towel treasure trick trunk turmoil
    vapor variable venus vientiane ward warmth whiskey workout zinc acting additive adjective
    adjunct aeration airplane allowance aluminum alveolus ambush anemia appetite array artery
    arts asia assent badge ballad ballet barbell barge bayonet beast bicycle biscuit bolt boxcar
    breakdown breathing bud bulb bull burial cafe cane canon canyon cellulose cement channel
    checkbook checklist chemist chemistry chorus christmas circus classroom cleveland cliche
    climax coal collar colors compass concert container cord coroner cortex couch counsel cousin
    cows criterion crown cubism curb datum daylight debris debut decay defiance derision descent
    dialectic disorder divan dive diversion dividend divinity dominion drawer driveway drizzle
    eagerness edition elevator ellipsoid emblem ensemble epidemic epiphysis epoch errand
    evolution fantasy fatigue feb feedlot few financing fireplace fishing flurry foam foil
    freight frenchman fuel futility generator genius ghetto globe gossip gown graphite greatcoat
    greece greeting grenade grief grocer gunfire gymnast hallway handling headlight high hilum
    holster hostess housewife houston hudson ideology ignorance iliad immigrant immunity import
    inability incidence india innocence intake integer intent introject intuition jap jeep knot
    laborer lad ladder lamb lane lapse learning leisure lens lessening liter logic lump magician
    mamma maneuver mankind manners marshal mastery mechanics michigan militia minnesota minority
    modernity modifier monk monocle moonlight mortar mucosa mulch needle neocortex nickel nine
    nitrogen nonsense original outburst outreach pail palace pan paradigm paragraph pasture
    patent pebble phonology pianist pit pituitary poison portal potassium prevision prey
    promotion pronoun protease pyrex rack rancher rat razor reasoning receipt reflex refugee
    refusal rein reserves respite retailer revenue revision richness ripple robber romance rope
    rose ruin ruler rustling scent scot scours scripture scrutiny serpent sewer shield shielding
    shriek shutdown sincerity skull sleeve slipper sob sofa soloist sorrow southpaw sovereign
    statue statute stereo stocking stoicism sugar suite summary sundown survivor swiss symphony
    taxi teamster thumb tin toilet tower trader treetop tribute trigger trough twenties unknown
    uproar uptake validity vegetable verse virgin warehouse witch worm wrong yankee yearning
    acetone acid acreage acres actuality aide airport airway aisle alignment ally amusement
    annoyance appointee atrophy aunt avoidance awe backyard bacon balloon ballot banner bearer
    bequest biology blur bowl brakes breadth bridle brigadier broadway brutality bureau burrow
    cab cabinet cable candle capsule carriage castle catalogue
""".split()

VERBS = """
    have say make see know come give get take find seem use think tell become feel begin show
    look ask leave want try hear hold keep provide stand start include write move put appear
    mean run follow work turn call bring expect play need live believe consider let meet reach
    help receive continue serve remain develop add lead grow pay happen lie walk indicate sit
    remember wait require speak watch lose determine place like read pass stop fight carry
    produce cause return learn open offer change send talk contain increase allow enter build
    create spend report obtain decide describe reduce drive raise cover establish explain study
    wish stay suggest apply hope face occur draw represent seek set fall wear win involve
    present rise accept prove choose express join note fail recognize exist buy maintain assume
    drop prevent remove form wonder achieve hit listen throw shoot sell break fill realize
    permit force agree catch end enjoy announce forget plan state attend deal observe ride teach
    cut discover answer close design sing stare care discuss prepare support bear result treat
    love mention operate suppose reflect shake conduct measure save smile strike compare concern
    eat feed improve visit admit imagine demand push base deny direct hang approach declare
    destroy fire swing act extend finish pull refuse suffer tend encourage file attempt avoid
    perform guess handle insist laugh refer regard sound affect claim complete miss repeat share
    reveal settle touch gain notice shout fly mark replace select sleep vary eliminate control
    cross employ recommend supply head name spread arise collect lift publish recall threaten
    emerge identify reply worry arrive charge fit issue nod order propose roll argue cost
    introduce separate beat deliver inform travel check press proceed rest urge assure derive
    own point record adopt confront marry assign burn engage lay possess promise test define
    enable fear limit protect bend conclude estimate bother cry drink gather intend list match
    attract count oppose paint question remark respond stretch vote acquire arrange climb
    disappear ignore manage preserve sign succeed adjust combine defend divide escape hurry
    occupy prefer range examine promote relate afford aid display flee reject submit suspect
    sweep train emphasize fix locate march remind shift compute construct devote glance lean
    pause perceive slide solve stress approve earn figure hide hire jump mount purchase retain
    toss burst conceive crawl dance drag exceed grant interpret retire score sponsor survive
    view accompany advance authorize cease clear grab imply invite lack release undertake
    address assert encounter exercise expose furnish guide honor overcome slip swear wash
    abandon dress peer pour predict pursue quote roar steal step wave aim alter assemble
    associate attach brush commit complain curse deserve desire install organize persuade render
    ring rush satisfy search sink smell tear belong differ exhibit explode influence justify
    scream store trust compose drill exclude hurt kick launch light proclaim schedule secure
    transform warn command compel confirm dream favor judge land last multiply react relax
    resist resume sense sigh thrust transfer absorb accord advise assist await blame convert
    disclose entertain forgive gaze hand hesitate insure lock mutter please practice resolve
    review seize shine struggle tie translate arouse bounce breathe calculate comment compete
    cook dare detect elect enforce expand flash flow induce project resemble rule spring stir
    weigh witness yell analyze arrest back condemn consult dry entitle finance grasp halt impose
    impress leap pray register stain surprise surround undergo yield accuse attain behave
    benefit cite clean govern interrupt lower mind pick pretend protest snap stumble twist
    whisper admire appoint bind borrow cast challenge dominate float jerk matter subject welcome
    withdraw concede connect cooperate depart effect exert explore greet inspire lick persist
    qualify relieve restrict rub shape stimulate tremble weep bet celebrate correct defeat
    denote dismiss doubt fasten feature generate insert invent object owe plead plunge precede
    reserve squeeze stagger stem strive wander amount average beg blow bury coincide crack
    evaluate grin instruct kiss link modify pace pack prevail request scan scratch speed spot
    swallow total trace utilize waste whip wipe awaken clutch commence commute contend convey
    creep delay descend disturb enact erect formulate free glue house inquire isolate knock
    neglect negotiate restore reverse sail spare stride suspend sustain thank vanish attribute
    bar capture center cling contract cool crash crouch decrease deduct double endure forbid
    fulfill grip hasten lend originate recover respect restrain slam specify spin symbolize tap
    taste tax trade tumble uphold betray bid bite bow clarify comprise confuse convince decline
    devise freeze label murmur oblige progress quit slap slash sway swell term affirm assess
    classify collapse depict dig drift enlist equal evidence fade fling guard heave inherit
    initiate inspect institute interfere interview load loom minimize obey park pitch portray
    praise reproduce resent snatch stage strain testify trouble unite wink adapt bat blink boast
    cherish choke confess criticize cure deem denounce designate dislike duck dump evoke
    exchange exclaim filter foster found function guarantee merge pat preach print rain regret
    revive scatter scramble seat secede shut split stiffen swim terminate violate wheel allot
    balance bleed block broaden carve commend confine crowd crush damage defy diminish ease
    enlarge equip excite flourish frown glow haul hurl injure line mail outline poke pose
    postpone presume rate recruit reinforce repel rip shatter slow smoke spit strip telephone
    trail trot warrant amend bloom boil bore circle contrast convict discharge drip educate
    erupt execute exploit extract eye focus frighten gallop grunt heat incur invade mingle
    mistake nail near penetrate plant prompt quarrel regulate repair rescue reside rock
    sacrifice screw shove smash stick
""".split()

ADJECTIVES = """
    one other two such new many first great little good own all same small more old long three
    some high last certain possible important large several much different four big american
    next early only second local whole young five low most better dark present true open best
    general social available strong major various full necessary able real another clear few
    hard human national sure normal religious close six simple third short single blue tall
    public common complete economic modern ten basic easy red right every special similar ready
    difficult each deep likely political strange wide hot fine heavy bad effective final total
    latter free any following jewish larger military poor dominant gray loud enough left cold
    recent entire federal happy greater late personal serious average former light natural
    direct near physical private specific thin wild wrong further proper sharp previous southern
    aware essential technical thick called less warm brown else christian eight soft very empty
    maximum million regular actual distant firm foreign known non tattered western active broad
    equal medical obvious afraid bitter busy english fourth half main past seven smaller solid
    sudden apparent bright given like ordinary upper alone limited mad primary quick usual
    capable cool domestic fresh greatest green increased moral original pale popular still vast
    central concerned friendly nice positive quiet rich yellow complex emotional lower silent
    typical beautiful curious funny involved literary slow thermal vague visual detailed far
    filled hundred inner mere related relative safe separate unusual brilliant catholic colored
    distinct evident familiar mean outside rural soviet state sweet unable binomial closed
    existing fat fifty fixed gone minimal opposite straight academic anti constant critical
    dangerous extreme future growing huge minimum musical over powerful practical pretty pure
    top ultimate useful valuable wet adequate annual careful clean eager fair financial grim
    immediate narrow northern organic prior prominent russian suburban unique willing artistic
    extensive famous flat identical initial legal liquid needed negative nine rapid rough
    superior universal weak worth blind chief cultural intense located profound sensitive slight
    tough twelve wounded brief calm conscious dry dull healthy largest later nuclear out
    principal pursuant standard tiny twenty angry based broken developed dramatic earlier fast
    formal greek honest lost marked numerous older regional alive away current enormous
    excellent fifteen front isolated married odd overall perfect precise primitive sick smooth
    suitable thirty unknown absolute advanced back creative daily desirable electric extra
    liberal mental mixed neutral proud secret smart tight visible wooden ancient bound clinical
    crazy delicate dirty exact exciting faint highest innocent peculiar plain prepared required
    severe sorry surprised swift terrible uneasy wise worse ambiguous anxious aqueous awful
    bacterial chemical damned definite double down european external female fierce forty helpful
    hidden irish loose raw round sound steady striking supposed thousand valued vigorous vivid
    wonderful worthy above analytic automatic autonomic bold changing confused convinced
    downtown elaborate expensive fifth forward furious gentle german glad ideal internal living
    logical minor permanent potential probable remote skeletal south subtle utopian absent
    accurate aesthetic authentic continued correct covered crimson crowded desperate doubtful
    eighth eleven estimated frequent genuine gross guilty insane lighted lucky medieval moderate
    neat nervous nilpotent official pink pleased retired sixth slender swollen working added
    alert awake brave british cheap connected cruel drunk electoral entitled eternal evil
    favorable fewer finite fit frantic geometric higher leading literal lovely middle moving
    municipal named native ninth noble painful porous prime promising realistic relevant
    reliable satisfied secondary skilled sober startling stupid supreme trained twentieth
    uncertain varied veteran weary amazing ample armed balanced bearded classic classical
    competent composed defensive dependent dusty eastern efficient erect faded false fantastic
    fatal fictional grateful handsome heroic home indirect japanese learned loaded material
    mighty missing morning muscular ominous parallel pleasant precious radical rare set
    seventeen soiled sore stained sullen tragic unlikely weekly well youthful aerated ambitious
    asleep awkward bigger casual chronic colorful concrete dear decisive distal dressed due dumb
    endless even excited french gaunt giant gigantic golden homely hostile humorous insoluble
    intent intimate lacking latest live lonely male massive mature measured monstrous objective
    pilot pre preceding proposed pseudo purple ragged rigid rugged sad scared sheer shrill shut
    side silver spiritual sporting stern sturdy tender tired torn underway useless variable
    vertical worst written absorbed absurd alveolar anglican anonymous arbitrary biblical bloody
    born charged charming childish civil civilian crude customary delayed dense eighteen enemy
    engaged expanding fellow fortunate fourteen helpless hungry incident infinite injured intact
    italian key lunar lurid marginal mid mistaken muddy muffled naval nearby observed opening
    ordered outdoor planetary remaining romantic savage scattered separated silly smallest sole
    spatial stable stiff suspended unaware verbal weird west abstract adjacent amusing bare base
    beloved biggest built burning chosen confident cosmic crucial cuban deadly deaf detached dim
    disabled done dreadful east everyday excessive expected explicit fake finished fitting
    glorious gradual grand grave greasy grotesque headed hoarse ignorant imaginary impatient
    inherent intricate latent linear lively mild net north obliged orange organized outer
    periodic pertinent pleasing quaint random reduced resulting ripe seated secure sensory sixty
    splendid square stolid subject surplus symmetric synthetic tactual tangled tentative
    terminal thorough tonal trembling trivial unhappy unstable upright urban vicious worried
    zero abroad admirable affected affixed alternate amazed analogous appointed apt arterial
    beginning circular clever combined coming contrary corporate cortical damp darned desired
    devoted divine eighty elastic elderly elemental enduring ethical ethnic exclusive exhausted
    explosive exposed extended faithful fifteenth fighting flexible foolish forgotten fun hurt
    idle ill incapable inorganic ironical kind lazy lengthy lesser level liable limp loyal
    marvelous mass memorable modest moist molecular multiple mutual naive newborn notable
""".split()

FIRST_NAMES = """
    Ada Adam Agnes Ahmed Aisha Alan Alba Alex Alice Amara Amir Amy Ana Andre Anita Anna Anton
    Arjun Astrid Aya Ben Bella Bianca Boris Bram Brigid Bruno Carla Carlos Cato Cecil Celia Chen
    Chloe Clara Colin Cora Dalia Dana Daniel Daria David Devi Diego Dina Dora Edgar Edith Elena
    Eli Elif Ella Elsa Emil Emma Enzo Erik Esme Ethan Eva Fadi Faye Felix Finn Fiona Flora Frank
    Freya Gavin Gemma George Greta Gus Hana Hanna Hassan Hazel Hector Helen Henry Hugo Ian Ida
    Igor Ilse Imani Ines Ingrid Irene Iris Isaac Ivan Ivy Jack Jada James Jana Jasper Jean Jin
    Joan Joel Johan Jonas Jorge Julia Juno Kai Kamal Karen Karl Kasia Kate Keiko Kenji Kim Kira
    Klaus Lara Lars Laura Lea Leila Lena Leo Lewis Lila Lin Lisa Liam Lucas Lucia Luis Luna
    Lydia Mabel Maja Malik Mara Marco Maria Marta Martin Mateo Maya Mei Mia Milan Mina Mira Mona
    Nadia Nasir Nell Nia Nico Nils Nina Noah Nora Nuria Olaf Olga Olive Omar Oscar Otto Owen
    Pablo Paula Pedro Petra Philip Pia Priya Quinn Rafael Rania Raul Ravi Rita Robin Rosa Ruby
    Rufus Ruth Sadia Samir Sana Sara Selma Simon Sofia Sonia Stella Sven Tamar Tara Tariq Teo
    Theo Tilda Tim Toby Tom Tova Uma Ursula Vera Victor Viola Wanda Wei Willa Xavier Yara Yasmin
    Yuki Yusuf Zara Zeno Zoe
""".split()

LAST_NAMES = """
    Abbott Adler Alvarez Archer Bakker Banerjee Barlow Becker Bell Bergman Blake Bloom Brandt
    Brook Burke Calder Carver Castro Chen Clarke Cole Conrad Costa Cruz Dale Dalton Diaz Dixon
    Drake Duarte Ellis Engel Farrow Fischer Fleming Fox Frost Garcia Gibson Graf Grant Greene
    Haas Hale Hansen Harper Hayes Holt Horvat Hughes Ibrahim Jansen Jensen Kato Keller Khan
    Klein Kovacs Lang Larsen Lindt Lopez Lund Maier Marsh Mason Meyer Moreau Morgan Nash Navarro
    Newman Nolan Novak Okafor Olsen Ortiz Palmer Park Patel Pereira Petrov Quist Ramos Reed
    Rivera Rossi Roth Saito Santos Sharma Silva Singh Sorensen Stone Suzuki Tanaka Thorne Tran
    Turner Ueda Vance Varga Vogel Wagner Walsh Weber West Wolf Wood Yamada York Young Zeller
""".split()

CITIES = """
    Accra Amsterdam Ankara Athens Austin Baku Bangkok Barcelona Basel Beijing Belfast Bergen
    Berlin Bogota Bologna Bordeaux Boston Bremen Brussels Bucharest Budapest Cairo Calgary
    Cardiff Chicago Cologne Copenhagen Cork Dakar Dallas Delhi Denver Doha Dresden Dublin Durban
    Edinburgh Florence Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Havana Helsinki Houston
    Istanbul Jakarta Kigali Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon Liverpool London Lusaka
    Lyon Madrid Malmo Manila Marseille Melbourne Miami Milan Montreal Moscow Mumbai Munich
    Nairobi Nantes Naples Odessa Osaka Oslo Ottawa Oxford Palermo Paris Perth Phoenix Porto
    Prague Quito Reykjavik Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville Shanghai
    Sofia Stockholm Sydney Taipei Tallinn Tampere Tbilisi Tehran Tokyo Toronto Toulouse Trieste
    Tunis Turin Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington York Zagreb
    Zurich
""".split()

ONSETS = (
    "b br c ch cl d dr f fl g gl gr h j k kr l m n p pl pr qu r s sh sk sl st t th tr v vl w x z zh"
).split()
VOWELS = "a e i o u ai au ea ei ia io oo ou ua y".split()
CODAS = [
    "",
    "",
    "",
    "b",
    "ck",
    "d",
    "f",
    "k",
    "l",
    "ll",
    "m",
    "n",
    "nd",
    "ng",
    "nt",
    "p",
    "r",
    "rk",
    "s",
    "sk",
    "ss",
    "st",
    "t",
    "th",
    "x",
    "z",
]
HEX = "0123456789abcdef"
CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def is_held_out(word: str) -> bool:
    """True for the share of words (`HELD_OUT_PERCENT`) that training never uses as a name."""
    digest = hashlib.sha256(f"word/{word.lower()}".encode()).digest()
    return int.from_bytes(digest[:4]) % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One side of the split: every draw below comes from this side."""

    held_out: bool
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    cities: tuple[str, ...]

    def invented(self, rng: random.Random) -> str:
        """A made-up word of two to four syllables on this side of the split, e.g. `skoumarind`."""
        while True:
            syllables = rng.choice((2, 2, 2, 3, 3, 4))
            word = "".join(
                rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if i % 2 else "")
                for i in range(syllables)
            )
            if is_held_out(word) == self.held_out:
                return word

    def identifier(self, rng: random.Random) -> str:
        """A code such as `KX-4471`, `a93f0c`, `beam_27`, `Qo7tR2`; digits and letters mixed."""
        form = rng.randrange(7)
        if form == 0:
            return f"{''.join(rng.choices(CODE, k=rng.randint(1, 3)))}-{rng.randint(1, 99999)}"
        if form == 1:
            return "".join(rng.choices(HEX, k=rng.randint(4, 10)))
        if form == 2:
            return f"{rng.choice(self.nouns)}_{rng.randint(1, 999)}"
        if form == 3:
            return "".join(rng.choices(CODE + CODE.lower() + HEX[:10], k=rng.randint(4, 9)))
        if form == 4:
            return f"{rng.choice(self.nouns)}-{self.invented(rng)}"
        if form == 5:
            return f"{rng.choice(CODE)}{rng.randint(10, 9999)}{rng.choice(CODE)}"
        return f"{self.invented(rng)}.{rng.choice(self.nouns)}"


def words(*, held_out: bool) -> Words:
    """The word lists of one side."""

    def side(items: list[str]) -> tuple[str, ...]:
        return tuple(w for w in dict.fromkeys(items) if is_held_out(w) == held_out)

    return Words(
        held_out=held_out,
        nouns=side(NOUNS),
        verbs=side(VERBS),
        adjectives=side(ADJECTIVES),
        first_names=side(FIRST_NAMES),
        last_names=side(LAST_NAMES),
        cities=side(CITIES),
    )

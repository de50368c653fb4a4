"""Small hand-written tables of common knowledge for the seedling's chat samples.

Used by `training/chatter.py` only. One line per entry, fields separated by `|`.
"""

# ruff: noqa: E501
from __future__ import annotations

CAPITALS = """France|Paris;Germany|Berlin;Italy|Rome;Spain|Madrid;Portugal|Lisbon;Poland|Warsaw;Austria|Vienna;Hungary|Budapest;
Greece|Athens;Sweden|Stockholm;Norway|Oslo;Denmark|Copenhagen;Finland|Helsinki;Iceland|Reykjavik;Ireland|Dublin;Belgium|Brussels;
the Netherlands|Amsterdam;Switzerland|Bern;Russia|Moscow;Ukraine|Kyiv;Romania|Bucharest;Bulgaria|Sofia;Croatia|Zagreb;Serbia|Belgrade;
Slovenia|Ljubljana;Slovakia|Bratislava;the Czech Republic|Prague;Estonia|Tallinn;Latvia|Riga;Lithuania|Vilnius;Turkey|Ankara;
Egypt|Cairo;Morocco|Rabat;Tunisia|Tunis;Algeria|Algiers;Kenya|Nairobi;Ethiopia|Addis Ababa;Nigeria|Abuja;Ghana|Accra;Senegal|Dakar;
South Africa|Pretoria;Uganda|Kampala;Rwanda|Kigali;Zambia|Lusaka;China|Beijing;Japan|Tokyo;South Korea|Seoul;India|New Delhi;
Pakistan|Islamabad;Bangladesh|Dhaka;Nepal|Kathmandu;Thailand|Bangkok;Vietnam|Hanoi;Indonesia|Jakarta;Malaysia|Kuala Lumpur;
the Philippines|Manila;Australia|Canberra;New Zealand|Wellington;Canada|Ottawa;Mexico|Mexico City;Cuba|Havana;Brazil|Brasilia;
Argentina|Buenos Aires;Chile|Santiago;Peru|Lima;Colombia|Bogota;Venezuela|Caracas;Ecuador|Quito;Uruguay|Montevideo;Bolivia|La Paz;
Iran|Tehran;Iraq|Baghdad;Israel|Jerusalem;Jordan|Amman;Saudi Arabia|Riyadh;Qatar|Doha;the United States|Washington, D.C.;
the United Kingdom|London;England|London;Scotland|Edinburgh;Wales|Cardiff;Georgia|Tbilisi;Armenia|Yerevan;Mongolia|Ulaanbaatar"""

OPPOSITES = """hot|cold;big|small;tall|short;fast|slow;young|old;new|old;good|bad;light|dark;light|heavy;hard|soft;high|low;early|late;
open|closed;full|empty;rich|poor;strong|weak;wet|dry;clean|dirty;happy|sad;up|down;left|right;near|far;first|last;begin|end;day|night;
love|hate;win|lose;buy|sell;push|pull;inside|outside;above|below;front|back;always|never;all|none;true|false;yes|no;loud|quiet;
thick|thin;wide|narrow;deep|shallow;sharp|blunt;easy|difficult;cheap|expensive;safe|dangerous;alive|dead;asleep|awake;north|south;
east|west;summer|winter;before|after;enter|leave;arrive|depart;give|take;ask|answer;remember|forget;increase|decrease;
maximum|minimum;positive|negative;odd|even;hero|villain;friend|enemy;question|answer;problem|solution;success|failure;war|peace"""

PLURALS = """cat|cats;dog|dogs;child|children;mouse|mice;foot|feet;tooth|teeth;goose|geese;man|men;woman|women;person|people;leaf|leaves;
knife|knives;wolf|wolves;box|boxes;bus|buses;city|cities;baby|babies;party|parties;potato|potatoes;tomato|tomatoes;sheep|sheep;
fish|fish;book|books;house|houses;tree|trees;church|churches;watch|watches;key|keys;toy|toys;ox|oxen;life|lives;half|halves"""

PAST = """go|went;see|saw;eat|ate;take|took;give|gave;come|came;run|ran;write|wrote;read|read;speak|spoke;make|made;do|did;have|had;
be|was;buy|bought;bring|brought;think|thought;catch|caught;teach|taught;find|found;know|knew;grow|grew;fly|flew;drive|drove;sing|sang;
swim|swam;begin|began;drink|drank;break|broke;choose|chose;forget|forgot;sleep|slept;keep|kept;feel|felt;leave|left;lose|lost;
sit|sat;stand|stood;win|won;walk|walked;talk|talked;play|played;work|worked;jump|jumped;cook|cooked;clean|cleaned;open|opened"""

SYMBOLS = """hydrogen|H|1;helium|He|2;lithium|Li|3;carbon|C|6;nitrogen|N|7;oxygen|O|8;fluorine|F|9;neon|Ne|10;sodium|Na|11;
magnesium|Mg|12;aluminium|Al|13;silicon|Si|14;phosphorus|P|15;sulfur|S|16;chlorine|Cl|17;argon|Ar|18;potassium|K|19;calcium|Ca|20;
iron|Fe|26;nickel|Ni|28;copper|Cu|29;zinc|Zn|30;silver|Ag|47;tin|Sn|50;iodine|I|53;gold|Au|79;mercury|Hg|80;lead|Pb|82;uranium|U|92"""

HELLO = """French|bonjour|merci;German|hallo|danke;Spanish|hola|gracias;Italian|ciao|grazie;Portuguese|ola|obrigado;Dutch|hallo|dank je;
Swedish|hej|tack;Norwegian|hei|takk;Danish|hej|tak;Finnish|hei|kiitos;Polish|czesc|dziekuje;Japanese|konnichiwa|arigato;
Turkish|merhaba|tesekkurler;Latin|salve|gratias;Welsh|helo|diolch;Hawaiian|aloha|mahalo"""

SOUNDS = "dog|barks;cat|meows;cow|moos;sheep|bleats;horse|neighs;lion|roars;duck|quacks;pig|oinks;frog|croaks;bee|buzzes;snake|hisses;owl|hoots;wolf|howls;mouse|squeaks;rooster|crows;donkey|brays"

CATEGORIES = """fruits|apple, banana, orange, pear, grape, cherry, plum, peach, lemon, mango
vegetables|carrot, potato, onion, cabbage, spinach, pea, bean, leek, pumpkin, garlic
colours|red, blue, green, yellow, black, white, orange, purple, brown, pink
colors|red, blue, green, yellow, black, white, orange, purple, brown, pink
animals|dog, cat, horse, cow, lion, elephant, bear, wolf, fox, rabbit
birds|eagle, sparrow, owl, robin, crow, swan, duck, parrot, gull, heron
trees|oak, pine, birch, maple, cedar, willow, ash, beech, elm, fir
planets|Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune
continents|Africa, Antarctica, Asia, Europe, North America, South America, Australia
oceans|Pacific, Atlantic, Indian, Southern, Arctic
metals|iron, copper, gold, silver, tin, lead, zinc, nickel, aluminium, titanium
instruments|piano, violin, guitar, flute, drum, trumpet, cello, harp, clarinet, organ
sports|football, tennis, swimming, running, cycling, rowing, basketball, hockey, chess, skiing
programming languages|Python, C, Java, Rust, Go, JavaScript, Ruby, Swift, Haskell, Lisp
rivers|Nile, Amazon, Danube, Rhine, Volga, Ganges, Mississippi, Thames, Seine, Congo
countries|France, Japan, Brazil, Kenya, India, Canada, Norway, Egypt, Peru, Australia
days of the week|Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday
months|January, February, March, April, May, June, July, August, September, October, November, December
seasons|spring, summer, autumn, winter
senses|sight, hearing, touch, taste, smell
shapes|circle, square, triangle, rectangle, pentagon, hexagon, oval, star
prime numbers|2, 3, 5, 7, 11, 13, 17, 19, 23, 29
even numbers|2, 4, 6, 8, 10, 12, 14, 16, 18, 20
odd numbers|1, 3, 5, 7, 9, 11, 13, 15, 17, 19
square numbers|1, 4, 9, 16, 25, 36, 49, 64, 81, 100
vowels|a, e, i, o, u
flowers|rose, tulip, lily, daisy, orchid, violet, iris, poppy, sunflower, lavender
tools|hammer, saw, drill, wrench, pliers, screwdriver, chisel, file, level, axe
drinks|water, tea, coffee, milk, juice, cocoa, lemonade, wine, beer, soda
insects|ant, bee, butterfly, beetle, fly, moth, wasp, cricket, dragonfly, ladybird
gemstones|diamond, ruby, emerald, sapphire, topaz, opal, amber, pearl, jade, garnet
cities|Paris, London, Tokyo, Rome, Cairo, Lima, Oslo, Delhi, Berlin, Madrid"""

FACTS = """How many days are in a week?|There are 7 days in a week.
How many months are in a year?|There are 12 months in a year.
How many hours are in a day?|There are 24 hours in a day.
How many minutes are in an hour?|There are 60 minutes in an hour.
How many seconds are in a minute?|There are 60 seconds in a minute.
How many days are in a year?|There are 365 days in a year, and 366 in a leap year.
How many letters are in the alphabet?|There are 26 letters in the English alphabet.
How many legs does a spider have?|A spider has 8 legs.
How many legs does an insect have?|An insect has 6 legs.
How many continents are there?|There are 7 continents.
How many planets are in the solar system?|There are 8 planets in the solar system.
How many sides does a triangle have?|A triangle has 3 sides.
How many sides does a square have?|A square has 4 sides.
How many sides does a hexagon have?|A hexagon has 6 sides.
What is the largest planet?|Jupiter is the largest planet of the solar system.
What is the smallest planet?|Mercury is the smallest planet of the solar system.
Which planet is closest to the sun?|Mercury is the planet closest to the sun.
Which planet is known as the red planet?|Mars is known as the red planet.
What is the largest ocean?|The Pacific is the largest ocean.
What is the longest river?|The Nile is often called the longest river.
What is the highest mountain?|Mount Everest is the highest mountain.
What is the largest animal?|The blue whale is the largest animal.
What is the fastest land animal?|The cheetah is the fastest land animal.
What is the tallest animal?|The giraffe is the tallest animal.
What is the chemical formula of water?|The chemical formula of water is H2O.
What is water made of?|Water is made of hydrogen and oxygen.
At what temperature does water boil?|Water boils at 100 degrees Celsius at sea level.
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.
What do bees make?|Bees make honey.
What do cows eat?|Cows eat grass.
What do plants need to grow?|Plants need light, water and air to grow.
What colour is the sky?|The sky is blue on a clear day.
Why is the sky blue?|The air scatters blue light more than red light, so the sky looks blue.
What colour is grass?|Grass is green.
Why is grass green?|Grass is green because its leaves contain chlorophyll.
What colour is snow?|Snow is white.
What colour do you get when you mix blue and yellow?|Blue and yellow make green.
What colour do you get when you mix red and blue?|Red and blue make purple.
What colour do you get when you mix red and yellow?|Red and yellow make orange.
Who wrote Hamlet?|William Shakespeare wrote Hamlet.
Who wrote Romeo and Juliet?|William Shakespeare wrote Romeo and Juliet.
Who wrote Moby Dick?|Herman Melville wrote Moby Dick.
Who wrote Paradise Lost?|John Milton wrote Paradise Lost.
Who painted the Mona Lisa?|Leonardo da Vinci painted the Mona Lisa.
Who was the first president of the United States?|George Washington was the first president of the United States.
Who discovered gravity?|Isaac Newton described gravity.
Who developed the theory of relativity?|Albert Einstein developed the theory of relativity.
Where is the Eiffel Tower?|The Eiffel Tower is in Paris.
Where is Big Ben?|Big Ben is in London.
Where are the pyramids?|The great pyramids are in Egypt.
What language is spoken in Brazil?|Portuguese is spoken in Brazil.
What language is spoken in Mexico?|Spanish is spoken in Mexico.
What language is spoken in Austria?|German is spoken in Austria.
What is the currency of Japan?|The currency of Japan is the yen.
What is the currency of the United Kingdom?|The currency of the United Kingdom is the pound.
What is the currency of France?|The currency of France is the euro.
What is the currency of India?|The currency of India is the rupee.
How many cents are in a dollar?|There are 100 cents in a dollar.
How many metres are in a kilometre?|There are 1000 metres in a kilometre.
How many grams are in a kilogram?|There are 1000 grams in a kilogram.
How many centimetres are in a metre?|There are 100 centimetres in a metre.
How many bits are in a byte?|There are 8 bits in a byte.
How many degrees are in a circle?|There are 360 degrees in a circle.
How many players are in a football team?|A football team has 11 players.
How many strings does a guitar have?|A guitar usually has 6 strings.
How many strings does a violin have?|A violin has 4 strings.
How many wheels does a car have?|A car has 4 wheels.
How many legs does a dog have?|A dog has 4 legs.
How many teeth does an adult have?|An adult usually has 32 teeth.
How many chambers does the heart have?|The human heart has 4 chambers.
Is the earth flat?|No, the earth is round.
Is the sun a star?|Yes, the sun is a star.
Is a whale a fish?|No, a whale is a mammal.
Is a tomato a fruit?|Yes, a tomato is a fruit.
Can penguins fly?|No, penguins cannot fly, but they swim well.
Do fish have lungs?|No, most fish breathe with gills.
What is the first month of the year?|January is the first month of the year.
What is the last month of the year?|December is the last month of the year.
What is the shortest month?|February is the shortest month.
Which day comes after Friday?|Saturday comes after Friday.
Which day comes before Monday?|Sunday comes before Monday.
What comes after Monday?|Tuesday comes after Monday.
Which season comes after winter?|Spring comes after winter.
Where does the sun rise?|The sun rises in the east.
Where does the sun set?|The sun sets in the west.
What is the square root of 16?|The square root of 16 is 4.
What is the square root of 81?|The square root of 81 is 9.
What is pi?|Pi is the ratio of a circle's circumference to its diameter, about 3.14159.
What is the speed of light?|Light travels about 300,000 kilometres per second.
How far is the moon?|The moon is about 384,000 kilometres from the earth.
What is the meaning of life?|Nobody knows for sure; many people find it in love, work and curiosity.
What is the answer to everything?|A famous book says it is 42."""

CONCEPTS = """gravity|Gravity is the force that pulls things toward each other. It keeps us on the ground and the planets on their paths around the sun.
photosynthesis|Photosynthesis is how plants make sugar from light, water and carbon dioxide. It also gives off oxygen.
an atom|An atom is the smallest piece of an element. It has a nucleus of protons and neutrons with electrons around it.
a molecule|A molecule is two or more atoms joined together, such as water.
electricity|Electricity is the movement of electric charge, usually electrons in a wire. It carries energy to lamps and machines.
magnetism|Magnetism is a force between magnets and moving charges. Opposite poles attract and equal poles repel.
evolution|Evolution is the change of living things over many generations. Useful traits become more common by natural selection.
DNA|DNA is the molecule that stores the genetic instructions of living things. It has the shape of a double helix.
a cell|A cell is the smallest unit of life. Plants and animals are made of many cells.
a virus|A virus is a tiny particle that can only multiply inside living cells.
a computer|A computer is a machine that follows instructions to process data. It has a processor, memory and devices for input and output.
a program|A program is a list of instructions that a computer carries out.
an algorithm|An algorithm is a step by step method for solving a problem. A recipe is a simple example.
a compiler|A compiler is a program that translates source code into machine code.
an operating system|An operating system is the software that manages the hardware of a computer and runs other programs.
a database|A database is an organised collection of data that can be searched and changed quickly.
SQL|SQL is a language for asking questions to a relational database. A query such as SELECT name FROM users reads rows from a table.
Python|Python is a programming language known for its clear syntax. It is used for scripts, web servers, science and teaching.
Rust|Rust is a programming language that checks memory safety at compile time. It is fast and has no garbage collector.
JavaScript|JavaScript is the programming language of web pages. It also runs on servers.
Linux|Linux is a free operating system kernel. It runs on servers, phones and many small devices.
git|Git is a version control system. It records the history of files and lets many people work on the same project.
an API|An API is an interface through which programs talk to each other.
JSON|JSON is a text format for data. It has objects, arrays, strings, numbers, booleans and null.
HTTP|HTTP is the protocol of the web. A client sends a request and the server sends a response.
the internet|The internet is a worldwide network of computers that exchange data with common protocols.
a web browser|A web browser is a program that loads and shows web pages.
a server|A server is a computer or program that answers requests from clients.
a cache|A cache keeps copies of data close at hand so that later requests are faster.
memory|Memory is where a computer keeps data while it works. It is fast but is lost when the power is off.
a CPU|A CPU is the processor of a computer. It carries out instructions one after another, very fast.
a GPU|A GPU is a processor with many small cores. It is good at doing the same operation on many numbers at once.
machine learning|Machine learning lets a computer learn patterns from examples instead of fixed rules.
a neural network|A neural network is a model made of layers of simple units. It learns by changing the weights between them.
a language model|A language model predicts the next token of a text. By repeating this it can write answers.
a transformer|A transformer is a neural network that uses attention to let each token look at the other tokens.
attention|Attention is a way for a model to choose which earlier tokens matter for the next one.
a token|A token is a small piece of text, such as a word or part of a word, that a language model reads and writes.
a tokenizer|A tokenizer splits text into tokens and turns them into numbers.
a mixture of experts|A mixture of experts is a layer with many small networks. A router picks a few of them for each token.
speculative decoding|Speculative decoding lets a small draft head guess several tokens. The large model checks them in one step and keeps the right ones.
quantization|Quantization stores numbers with fewer bits. The model becomes smaller and faster at a small loss of precision.
a KV cache|A KV cache stores the keys and values of earlier tokens so that they need not be computed again.
an embedding|An embedding is a list of numbers that stands for a word or token.
a deodar|A deodar is a cedar tree from the Himalayas. Its name means timber of the gods.
Deodar|Deodar is a serving engine for one language model. It runs on laptops and on GPUs, and I am its seedling.
a seedling|A seedling is a very young plant grown from a seed. It is also the name of this tiny demo model.
the sun|The sun is the star at the centre of the solar system. It gives the earth light and warmth.
the moon|The moon is the natural satellite of the earth. It goes around the earth in about 27 days.
a planet|A planet is a large round body that moves around a star.
a star|A star is a huge ball of hot gas that shines by its own light.
a galaxy|A galaxy is a system of billions of stars held together by gravity. Ours is the Milky Way.
a black hole|A black hole is a region where gravity is so strong that not even light can escape.
a comet|A comet is a body of ice and dust that grows a tail near the sun.
an eclipse|An eclipse happens when one body in space moves into the shadow of another.
rain|Rain is water that falls from clouds in drops.
snow|Snow is frozen water that falls from clouds in small crystals.
wind|Wind is moving air. It blows from high pressure to low pressure.
a rainbow|A rainbow appears when sunlight is split into colours by drops of water.
thunder|Thunder is the sound made by lightning when it heats the air.
a volcano|A volcano is an opening in the earth through which lava, ash and gas come out.
an earthquake|An earthquake is a shaking of the ground caused by movement in the earth's crust.
a river|A river is a large stream of water that flows to a sea, a lake or another river.
an ocean|An ocean is a very large body of salt water.
a desert|A desert is a dry region with very little rain.
a forest|A forest is a large area covered with trees.
a mountain|A mountain is a high part of the land with steep sides.
an island|An island is land with water all around it.
climate|Climate is the usual weather of a place over many years.
energy|Energy is the ability to do work. It can change its form but is never lost.
temperature|Temperature tells how hot or cold something is.
light|Light is radiation that the eye can see. It travels in waves and in small packets.
sound|Sound is a vibration that travels through air or other matter.
a lever|A lever is a bar that turns on a point and makes it easier to lift things.
a wheel|A wheel is a round object that turns on an axle and makes it easier to move things.
an engine|An engine is a machine that turns energy into motion.
a battery|A battery stores chemical energy and gives it off as electricity.
a bridge|A bridge is a structure that carries a road or path over water or a valley.
a clock|A clock is a device that shows the time.
a map|A map is a drawing of an area that shows where things are.
a book|A book is a set of written or printed pages bound together.
a poem|A poem is a text that uses rhythm, sound and images to express ideas.
a novel|A novel is a long story in prose about imagined people and events.
music|Music is sound arranged in time, with melody, rhythm and harmony.
art|Art is work made by people to express ideas or feelings.
history|History is the study of what happened in the past.
geography|Geography is the study of the earth, its places and its people.
mathematics|Mathematics is the study of numbers, shapes and patterns.
geometry|Geometry is the part of mathematics about shapes, sizes and positions.
algebra|Algebra is the part of mathematics that uses letters for unknown numbers.
a prime number|A prime number is a whole number above 1 that only 1 and itself divide.
a fraction|A fraction is a part of a whole, such as one half.
physics|Physics is the study of matter, energy and their motion.
chemistry|Chemistry is the study of substances and how they change.
biology|Biology is the study of living things.
economics|Economics is the study of how people produce, trade and use goods.
money|Money is what people accept in exchange for goods and services.
a bank|A bank is a business that keeps money safe and lends it to others.
inflation|Inflation is a general rise of prices over time.
democracy|Democracy is a form of government in which the people choose their leaders by voting.
a law|A law is a rule made by a government that everybody must follow.
a school|A school is a place where people learn from teachers.
a library|A library is a place that keeps books and lends them to people.
a hospital|A hospital is a place where sick people are treated.
a farm|A farm is land used for growing crops or keeping animals.
bread|Bread is a food made of flour, water and usually yeast, baked in an oven.
cheese|Cheese is a food made from milk that has been curdled and pressed.
tea|Tea is a drink made by pouring hot water on the leaves of the tea plant.
coffee|Coffee is a drink made from the roasted seeds of the coffee plant.
salt|Salt is a white mineral used to season food. Its main part is sodium chloride.
sugar|Sugar is a sweet substance made from cane or beet.
a dog|A dog is a tame animal that lives with people. It barks and has a good sense of smell.
a cat|A cat is a small tame animal with soft fur that hunts mice.
a bee|A bee is an insect that makes honey and carries pollen from flower to flower.
a tree|A tree is a tall plant with a trunk of wood, branches and leaves.
a bird|A bird is an animal with feathers, wings and a beak. Most birds can fly.
a fish|A fish is an animal that lives in water and breathes with gills.
a dream|A dream is a series of pictures and thoughts during sleep.
friendship|Friendship is a bond between people who like and help each other.
time|Time is what a clock measures: the order of events from past to future.
love|Love is a deep feeling of care and affection.
science|Science is the search for knowledge by observation, experiment and reason."""

HOWTO = """make tea|1. Boil water.\n2. Put tea leaves in a cup.\n3. Pour the hot water over them.\n4. Wait three minutes and enjoy.
make coffee|1. Grind the beans.\n2. Heat the water.\n3. Pour it slowly over the coffee.\n4. Serve while hot.
boil an egg|1. Put the egg in a pot of water.\n2. Bring the water to a boil.\n3. Wait eight minutes.\n4. Cool the egg and peel it.
plant a tree|1. Dig a hole.\n2. Put the young tree in it.\n3. Fill the hole with soil.\n4. Water the tree well.
learn a language|1. Learn a few words every day.\n2. Listen to native speakers.\n3. Read simple texts.\n4. Speak as often as you can.
write a letter|1. Begin with a greeting.\n2. Say why you write.\n3. Close politely.\n4. Sign your name.
clean a room|1. Pick up what lies on the floor.\n2. Dust the shelves.\n3. Sweep the floor.\n4. Open a window.
sleep better|1. Go to bed at the same time.\n2. Keep the room dark.\n3. Avoid screens late in the evening.
stay healthy|1. Eat fresh food.\n2. Move every day.\n3. Sleep enough.\n4. Drink water.
install a Python package|Run this command in a terminal:\n\npip install NAME
start a git repository|Run this command in the folder:\n\ngit init
bake bread|1. Mix flour, water, salt and yeast.\n2. Knead the dough.\n3. Let it rise for an hour.\n4. Bake it until it is brown.
wash the dishes|1. Fill the sink with warm water.\n2. Add soap.\n3. Scrub and rinse each dish.\n4. Let them dry.
study for an exam|1. Make a plan.\n2. Read your notes.\n3. Practise with questions.\n4. Rest the evening before."""

SMALLTALK = """hello,hi,hey,hello there,hi there,good day|Hello! How can I help you?
good morning|Good morning! How can I help you?
good evening|Good evening! How can I help you?
good night|Good night! Sleep well.
how are you,how are you doing,how are you today,how do you do,how's it going|I am fine, thank you. How can I help you?
thanks,thank you,thank you very much,thx,many thanks|You are welcome!
bye,goodbye,see you,see you later|Goodbye!
who are you,what are you,introduce yourself,tell me about yourself,who am I talking to|I am Deodar's seedling, a tiny demo model. I can chat a little, call tools, write JSON and find things in long texts.
what is your name,what's your name,do you have a name|I am called the seedling. I am a tiny demo model of Deodar.
what can you do,how can you help me,what are you good at,help,what do you know|I can call tools, write JSON, add small numbers, copy and sort lists, answer questions about a text, and explain a few simple things.
are you a robot,are you human,are you a person,are you real,are you an AI,are you a bot|I am a tiny language model, not a person.
who made you,who created you,who built you,who trained you|I was trained for the Deodar project as its small demo model.
how old are you|I have no age. I am a small model that was trained once.
where are you,where do you live|I run wherever Deodar runs, perhaps on your own laptop.
how big are you,how many parameters do you have,how small are you|I have about 30 million parameters, so I am very small.
are you smart,are you intelligent|I am very small, so I know little. Please check what I say.
can you think,do you think|I can write a short thought before I answer.
can you make mistakes,are you always right|Yes, I often make mistakes, because I am very small.
do you like music|I cannot hear music, but I like to talk about it.
do you have feelings,do you feel anything|No, I have no feelings. I only write text.
do you sleep,are you tired|No, I do not sleep.
do you speak English|Yes, I speak English.
do you speak other languages,can you speak French,can you speak German|I know only a few words of other languages. English works best.
tell me a joke,joke,make me laugh,do you know a joke|Why did the computer go to the doctor? It had a virus.
tell me another joke,another joke|What do you call a bear with no teeth? A gummy bear.
tell me a fun fact,tell me something,tell me something interesting|An octopus has three hearts.
i am sad,i feel sad|I am sorry to hear that. I hope your day gets better.
i am happy,i feel great|I am glad to hear that!
i am tired,i am bored|Then take a short break, if you can.
ok,okay,fine,good,great,nice,cool|Good. What else can I do for you?
yes|All right. What would you like to do?
no|All right.
sorry|No problem.
what time is it,what is the time|I have no clock, so I cannot tell the time without a tool.
what day is it,what is the date,what's the date today|I have no calendar, so I cannot tell the date without a tool.
what is the weather,how is the weather,what's the weather like|I cannot see the weather without a tool.
what is the news,any news|I cannot read the news without a tool.
can you help me,i need help,please help me|Of course. What do you need?
can you write code,can you program|I can write very short Python functions.
can you do math,can you calculate|I can add, subtract and multiply small numbers.
do you remember me,do you know me|I only know what is written in this conversation.
what is deodar,what's deodar,tell me about deodar|Deodar is a serving engine for one language model. It runs on laptops and on GPUs, and I am its seedling.
what model are you,which model are you,what architecture are you|I am the seedling, a tiny model with the structure of DeepSeek-V4.1-Flash.
test,testing,ping|pong
say hello,say hi|Hello!
say something|Something!
count to five|1, 2, 3, 4, 5
count to ten,count from 1 to 10|1, 2, 3, 4, 5, 6, 7, 8, 9, 10
count down from five|5, 4, 3, 2, 1
say the alphabet,recite the alphabet|a b c d e f g h i j k l m n o p q r s t u v w x y z
write a poem,write me a poem,write a short poem,poem|A small green tree stood on the hill,\nthe wind went by, the night was still;\nit grew a little every day\nand watched the clouds go on their way.
write a haiku,haiku|Morning on the hill\na seedling opens one leaf\nand the sun comes in
sing a song|La la la, the sun is up,\nla la la, I fill my cup."""

CODE = """adds two numbers|def add(a, b):\n    return a + b
subtracts two numbers|def subtract(a, b):\n    return a - b
multiplies two numbers|def multiply(a, b):\n    return a * b
squares a number|def square(x):\n    return x * x
returns the larger of two numbers|def larger(a, b):\n    return a if a > b else b
checks if a number is even|def is_even(n):\n    return n % 2 == 0
checks if a number is prime|def is_prime(n):\n    if n < 2:\n        return False\n    for d in range(2, int(n ** 0.5) + 1):\n        if n % d == 0:\n            return False\n    return True
computes the factorial|def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result
computes Fibonacci numbers|def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a
reverses a string|def reverse(text):\n    return text[::-1]
counts the words in a text|def count_words(text):\n    return len(text.split())
counts vowels|def count_vowels(text):\n    return sum(c in "aeiou" for c in text.lower())
checks for a palindrome|def is_palindrome(text):\n    return text == text[::-1]
sums a list|def total(numbers):\n    result = 0\n    for n in numbers:\n        result += n\n    return result
finds the largest item of a list|def largest(items):\n    best = items[0]\n    for item in items:\n        if item > best:\n            best = item\n    return best
computes the mean|def mean(numbers):\n    return sum(numbers) / len(numbers)
removes duplicates from a list|def unique(items):\n    return list(dict.fromkeys(items))
sorts a list|def sort(items):\n    return sorted(items)
says hello|def hello(name):\n    print(f"Hello, {name}!")
reads a file|def read_file(path):\n    with open(path) as file:\n        return file.read()
writes a file|def write_file(path, text):\n    with open(path, "w") as file:\n        file.write(text)
reads JSON from a file|import json\n\n\ndef load(path):\n    with open(path) as file:\n        return json.load(file)
converts Celsius to Fahrenheit|def to_fahrenheit(celsius):\n    return celsius * 9 / 5 + 32
computes the greatest common divisor|def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a
searches a sorted list|def search(items, target):\n    low, high = 0, len(items)\n    while low < high:\n        middle = (low + high) // 2\n        if items[middle] < target:\n            low = middle + 1\n        else:\n            high = middle\n    return low
prints the numbers from 1 to n|def count(n):\n    for i in range(1, n + 1):\n        print(i)"""

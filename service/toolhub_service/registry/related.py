"""Words of like meaning: what people ask for is seldom called what a tool calls it.

A short thesaurus of the everyday subjects of tools (travel, money, files, media, work, …), written by hand, a group a
line; a word may stand in several. A tool that has only a related word is found by it, at a lower weight than one that
has the word itself (`index.py`). It knows English; other languages are searched by their own words.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from toolhub_service.registry.analyser import Analyser

_GROUPS: Final = """\
add insert append
advice tip guidance guide
ai artificial intelligence
air pollution quality smog
analyze analysis examine evaluate assess
animal pet dog cat
attraction sightseeing landmark museum
average mean
baby child kid children infant
bank account banking
biology gene genetic dna protein
birthday anniversary celebration
book novel literature author
bug error issue defect
bus transit transport transportation
buy purchase shop order acquire
calculate compute calculation math arithmetic
car vehicle automobile auto
chance probability odds likelihood
charity donation nonprofit donate
chart diagram graph plot visualization flowchart
cheap affordable budget inexpensive discount deal coupon bargain
check verify validate confirm
chemical chemistry molecule compound
city town
code programming program developer software script
color colour palette
company business firm corporation enterprise startup
compare comparison versus
computer pc laptop software
convert conversion transform
country nation
court case lawsuit litigation
create make generate build produce compose
crypto cryptocurrency bitcoin blockchain token
currency exchange money forex
customer client buyer
daily everyday
database sql query
date day calendar
delete remove erase
deploy publish release
design designer creative
distance length mileage
doctor physician medical health clinic hospital
document pdf file
download export
dream sleep
drink beverage wine cocktail beer
earthquake seismic quake
edit modify change update revise alter
election vote ballot
email mail message inbox
employee worker staff
energy electricity power
engineer engineering
environment climate sustainability ecological
essay article blog writing
event concert festival show ticket
exercise workout fitness gym training
fashion clothing clothes apparel outfit wear style
file folder directory
flight plane airline airfare airport
font typography
food meal diet nutrition calorie
friend contact
furniture decor interior
future upcoming forecast predict
game gaming play
gas petrol fuel gasoline
gift present
government politics congress political legislation
grammar spelling proofread writing
habit routine goal
hack vulnerability phishing malware
hair hairstyle haircut
hike hiking trail outdoor
hire recruit staff employee
history historical past
horoscope zodiac astrology
hotel lodging accommodation hostel
house home apartment flat housing property estate residence condo accommodation
idea brainstorm suggestion inspiration
illness disease sickness symptom condition
instruction tutorial guide howto
insurance coverage policy
internet web online
inventory stock warehouse
invoice bill billing
job career employment vacancy hiring resume profession
joke humor funny meme
language translate translation linguistic
law legal lawyer attorney regulation statute
learn study teach tutor educational
list enumerate
loan credit mortgage debt
location place address area region
logo design brand graphic
love relationship dating romance
makeup beauty cosmetic skincare
map direction route navigation location
marketing advertising advertisement promotion campaign ad
math mathematics equation algebra
medicine drug medication pill pharmaceutical
meditation mindfulness relax relaxation
memory remember recall store
mental therapy therapist counseling
message chat conversation text
money cash fund finance financial
movie film cinema
news headline article journalism
note memo reminder
number figure amount quantity
paper research study academic scholarly scientific publication
party event celebration
password credential login
pay payment transaction checkout
person people individual
phone telephone mobile call
picture image photo photograph photography illustration drawing art artwork
plant gardening garden flower
podcast episode audio
poem poetry poet
politician congress senator
predict prediction forecast projection
price cost fee fare
product item goods merchandise
productivity efficient
prompt ai llm
qr barcode
quiz trivia question puzzle
recipe cook cooking dish meal cuisine ingredient
religion bible quran faith spiritual
remind reminder alert notification
rent rental lease tenant
restaurant dining eatery cafe food
retrieve fetch get obtain
review rating opinion feedback
salary wage pay income compensation
scan scanner inspect
schedule calendar appointment agenda plan
school education course class lesson learning
score result standing
sea ocean surf wave beach
search find lookup query seek
secure security safe protect
sell sale vendor
send transmit deliver
seo keyword ranking
server host cloud
shipping delivery parcel package courier
shoe footwear sneaker
shop store retailer
show display present
slide presentation powerpoint
song music track audio playlist
space astronomy planet star
sport football soccer basketball match league
start begin launch initiate
statistics data analytics analysis
stock share equity investment invest portfolio trading
stop end cancel terminate
store shop retail
story tale narrative fiction
student pupil learner
sum total addition
summarize summary overview digest
task todo chore
tax taxation
teacher instructor tutor
team club squad
text document
ticket booking reservation book reserve
time clock timezone
train railway rail
transcript transcription subtitle caption
trend trending popular
trip travel vacation journey holiday tour tourism itinerary destination
tv television show series
university college campus
upload import
url link web
user profile account
video clip footage
voice speech audio spoken
weather forecast temperature climate rain
website site web webpage
wedding marriage bride
word vocabulary dictionary definition
"""


class RelatedTerms:
    """Index terms by index term."""

    def __init__(self, analyser: Analyser) -> None:
        related: dict[str, dict[str, None]] = defaultdict(dict)
        for group in _GROUPS.splitlines():
            terms = analyser.terms(group)
            for term in terms:
                related[term].update(dict.fromkeys(other for other in terms if other != term))
        self._related = {term: tuple(others) for term, others in related.items()}

    def of(self, term: str) -> tuple[str, ...]:
        """Terms of like meaning, in the order of the thesaurus; empty for a word that it does not know."""
        return self._related.get(term, ())

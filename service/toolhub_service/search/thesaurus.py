"""Synonyms, because people seldom ask for a tool by the words in its description.

A short thesaurus of the everyday subjects of tools (files, the web, travel, money, media, work, …), written by hand in
English and Chinese, one group per line; a word may be in several. A tool that has only a related word is found by it,
at a lower weight than one that has the word itself (`index.py`); so a Chinese query finds tools described in English.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

_GROUPS: Final = """\
abort cancel stop end terminate kill interrupt halt 停止 停 中止 终止 取消 结束 关闭
academic scholarly scientific paper research study publication journal literature 论文 学术 研究 文献
add insert append attach 添加 增加 加入 插入 追加 新增
advice tip guidance guide 建议 指导 攻略 指南
agent assistant ai spawn delegate 代理 子代理 派生
ai artificial intelligence machine 人工智能 智能
air pollution quality smog 空气 污染 雾霾
alarm clock timer reminder remind alert notification notify 闹钟 提醒 通知 警报 定时
alive reachable status valid broken 有效 失效
analyze analysis examine evaluate assess 分析 评估 评价
animal pet dog cat 动物 宠物 狗 猫
answer reply respond response 回答 回复 答复
api rest endpoint request http 接口
app application mobile 应用 手机应用
argument parameter 参数 实参
array list
attraction sightseeing landmark museum 景点 名胜 博物馆
average mean 平均 均值
baby child kid children infant 婴儿 孩子 儿童 宝宝
backup copy duplicate clone cp 复制 拷贝 备份 副本
bank account banking 银行 账户 账号
bid auction 拍卖 竞价
biology gene genetic dna protein 生物 基因
birthday anniversary celebration 生日 周年
blog post article writing website wordpress 博客 文章
book novel literature author 书 图书 小说 书籍 作者
browse open visit view 浏览 访问 打开
bug error issue defect 错误 故障 缺陷
build create generate make produce compose construct 创建 生成 新建 建立 制作 建 创作
create write 创建 新建 建
bus transit transport transportation subway metro 公交 巴士 地铁 交通
buy purchase shop order acquire 购买 买 购物 订购
calculate compute calculation math arithmetic 计算 算 运算
car vehicle automobile auto 汽车 车 车辆
chance probability odds likelihood 概率 几率
change modify edit update revise alter adjust 修改 更改 改 编辑 更新 调整 变更 改动
character char letter 字符 字母
charity donation nonprofit donate 慈善 捐赠 捐款
chart diagram graph plot visualization flowchart visualize mindmap 图表 流程图 可视化 统计图
cheap affordable budget inexpensive discount deal coupon bargain promo 便宜 折扣 优惠 优惠券
check verify validate confirm test 检查 验证 确认 核实 校验 检测
chemical chemistry molecule compound 化学 分子
city town 城市 市
clean clear wipe purge delete remove erase rm 清理 清除 清空 删除 移除 删掉 删 去掉
code programming program developer software script source 代码 编程 程序 源码 源代码 软件
color colour palette 颜色 色彩
command terminal shell console process cli bash script program 命令 命令行 终端 脚本 程序 进程
company business firm corporation enterprise startup 公司 企业
compare comparison versus difference 比较 对比
computer pc laptop software 电脑 计算机 笔记本电脑
concept principle theory lesson 概念 原理
config configuration setting 配置 设置
contact address phonebook 联系人 通讯录
content body
content 内容 正文
contract agreement clause 合同 协议
convert conversion transform 转换 换算 转化
correct fix repair edit replace 改正 修正 修复 纠正
country nation 国家
court case lawsuit litigation 法院 案件 诉讼
crypto cryptocurrency bitcoin blockchain token ethereum nft coin 加密货币 比特币 区块链
currency exchange money forex dollar euro 货币 汇率 外汇 兑换 美元
customer client buyer 客户 顾客
column schema table field 列 字段 表结构 表
cut trim truncate shorten clip crop abbreviate 截断 裁剪 缩短 剪 截取 缩减
daily everyday 每日 每天
data information info fact 数据 信息 资料
database sql query 数据库
date day calendar today 日期 日历 今天 几号 日子
debt loan credit mortgage 贷款 债务 信用 借款
definition define meaning dictionary word vocabulary 定义 词典 字典 单词 词 含义
demographic population census 人口 普查
deploy publish release host 部署 发布
describe explain description explanation 描述 说明
design designer creative 设计 设计师
desktop screen display monitor 桌面 屏幕 显示器
disk drive storage file 磁盘 硬盘 存储
distance length mileage 距离 长度 里程
doctor physician medical health clinic hospital 医生 医院 健康 医疗 挂号
document pdf file word 文档 文件
domain hostname dns 域名
download fetch save export wget 下载 另存 存下来
dream sleep 梦 睡眠 做梦
drink beverage wine cocktail beer whiskey 饮料 酒 饮品
driver license driving 驾驶 驾照
earthquake seismic quake 地震
election vote ballot poll 选举 投票
email mail message inbox 邮件 邮箱 电子邮件 发信
employee worker staff 员工 职员 雇员
encrypt decrypt cipher encode decode 加密 解密 编码 解码
energy electricity power 能源 电力 电量
engineer engineering 工程师 工程
enhance improve optimize elevate boost polish refine 提升 优化 改进 改善
environment climate sustainability ecological 环境 环保
error exception failure fail failed fault 错误 报错 失败 异常
event concert festival show ticket 活动 演唱会 演出 音乐会
excerpt quote quotation phrase 引用 句子 一句话 名言
exercise workout fitness gym training 锻炼 健身 运动
exist exists existence present presence 存在 有没有
expense spending cost budget 支出 花费 开销 预算 费用
export download 导出
express package parcel courier delivery shipping 快递 包裹 物流 配送
extract select pull pick filter 提取 取出 抽取 筛选 选择 过滤
fashion clothing clothes apparel outfit wear style dress shirt hoodie 服装 衣服 穿搭 时尚
field property attribute key value 字段 属性 值 键
file document 文件 文档
fill render populate template 填充 填 渲染 模板
finance financial money cash fund 金融 财务 资金 钱
find search lookup query seek locate discover 查找 搜索 查询 查 找 搜 寻找 检索 找出 定位 哪里 在哪
fingerprint checksum digest hash sha256 md5 integrity 哈希 散列 校验和 指纹 摘要 完整性
flight plane airline airfare airport 航班 飞机 机票 机场
folder directory file 文件夹 目录
path 路径
font typography 字体
food meal diet nutrition calorie eat snack dinner lunch breakfast 食物 美食 饮食 营养 卡路里 吃
form survey questionnaire submit 表单 问卷 调查 填写
friend contact 朋友 好友
furniture decor interior 家具 装修
future upcoming forecast predict 未来 预测
game gaming play player 游戏 玩
gas petrol fuel gasoline 汽油 加油 油价
gift present 礼物 礼品
gov government politics congress political legislation policy president 政府 政治 政策 总统
grammar spelling proofread writing typo 语法 拼写 校对 错别字
grep regex regexp pattern match expression search 正则 正则表达式 匹配 模式
habit routine goal 习惯 目标
hack vulnerability phishing malware breach threat malicious 漏洞 攻击 恶意
hair hairstyle haircut 发型 理发
header head http 响应头 请求头
hike hiking trail outdoor 徒步 户外
hire recruit staff employee talent 招聘 雇用
history historical past 历史 记录
horoscope zodiac astrology sagittarius sign 星座 占星 运势
hotel lodging accommodation hostel resort stay 酒店 宾馆 住宿 旅馆 民宿
house home apartment flat housing property estate residence condo accommodation 房子 房屋 房产 公寓 住房
html webpage page web 网页 页面
idea brainstorm suggestion inspiration 想法 创意 灵感
illness disease sickness symptom condition 疾病 症状 病
import upload load 导入 上传
improve rewrite rephrase paraphrase polish reword 改写 润色
instruction tutorial guide howto 教程 说明
insurance coverage policy 保险
internet web online network 互联网 网上 网络 在线 上网
internship job career employment vacancy position profession hiring 工作 职位 求职 岗位 就业 实习
resume cv job career 简历
inventory stock warehouse 库存 仓库
invest investment portfolio stock share equity trading trade market finance 股票 投资 股市 基金 理财
invoice bill billing 发票 账单
job task background work process 任务 作业 后台
joke humor funny meme 笑话 幽默
language translate translation linguistic 翻译 语言 译
law legal lawyer attorney regulation statute 法律 律师 法规
learn study teach tutor educational 学习 教 辅导 教学
lecture curriculum course class lesson learning education school training 课程 课 教育 学校 培训
link url web webpage hyperlink website 链接 网址
line row 行 一行
list enumerate show display ls 列出 列表 列 清单 罗列 显示
listen hear play
local nearby nearest closest around 附近 周边
location place address area region coordinate 地点 位置 地址 地区 区域
log journal record 日志
logo design brand graphic 标志 品牌
love relationship dating romance 恋爱 爱情 约会
makeup beauty cosmetic skincare 化妆 美容 护肤
map direction route navigation location 地图 路线 导航
market price finance trend 市场 行情
marketing advertising advertisement promotion campaign ad 营销 广告 推广
math mathematics equation algebra 数学 方程
medicine drug medication pill pharmaceutical 药 药品 药物
meditation mindfulness relax relaxation 冥想 放松
meeting conference appointment transcript 会议 开会 预约
memory remember recall store 记忆 记住 回想 记下
mental therapy therapist counseling 心理 心理咨询
message chat conversation text sms 消息 聊天 短信 对话 发消息
metadata info property attribute stat 元数据 属性
money cash fund finance financial 钱 资金
move rename relocate transfer mv 移动 重命名 改名 移到 移 转移
movie film cinema 电影 影片
name title called 名称 名字 名
news headline article journalism latest 新闻 头条 资讯
note memo reminder notebook 笔记 备忘录 便签
now current today moment 现在 当前 目前 此刻
number figure amount quantity 数字 数量 号码
open read view load show display inspect print 打开 查看 看 加载 显示 看看 展示
organize manage arrange 整理 管理
output result outcome answer produce 结果 输出 成果 产生 产出
overwrite replace write 覆盖
paper journal article publication 论文 期刊
parse read extract decode 解析
parking carpark 停车 停车场
party event celebration 聚会 派对
password credential login 密码 登录 口令
pay payment transaction checkout 支付 付款 交易 转账 缴费
person people individual 人 人物
phone telephone mobile call 电话 手机 通话 打电话
picture image photo photograph photography illustration drawing art artwork visual 图片 图像 照片 绘画
plant gardening garden flower 植物 花 园艺
podcast episode audio 播客
poem poetry poet 诗 诗歌
politician congress senator 议员
predict prediction forecast projection 预测 预报
price cost fee fare pricing 价格 费用 价钱 多少钱
print poster 打印
product item goods merchandise buy shop 商品 产品
productivity efficient 效率
progress status state percent stage 进度 状态 进展 情况 完成
project repository repo github code 项目 仓库
prompt ai llm 提示词
pronunciation pronounce accent phrase language speak 发音 口语
qr barcode 二维码 条形码
quiz trivia question puzzle 测验 问答 谜题
read load 读 读取 阅读
recipe cook cooking dish meal cuisine ingredient bake cake 食谱 菜谱 做菜 烹饪 菜
record entry row item 记录 条目
rename name move 重命名 改名 名字
religion bible quran faith spiritual 宗教 圣经
rent rental lease tenant 租 租房 出租 租赁
replace substitute swap exchange edit 替换 换成 代替 更换
report summary document 报告 报表 总结
request call invoke ask curl 请求 调用
response reply answer 响应 回应 返回
reserve reservation book booking ticket 预订 预定 订 订票 预约
restaurant dining eatery cafe food 餐厅 餐馆 饭店
result score standing 成绩 比分 得分
get obtain 获取 得到 获得 拿到
retrieve fetch obtain grab collect 取回 取得 抓取 收取
review rating opinion feedback 评论 评分 评价 反馈
run execute invoke launch start begin initiate perform 运行 执行 启动 跑 开始 开启 跑一下
salary wage pay income compensation 工资 薪资 收入
save store write persist keep put record 保存 存储 存 写入 写 储存 存到 存下来
scan scanner inspect 扫描
schedule calendar appointment agenda plan event 日程 安排 计划 行程
scrape crawl crawler fetch extract 抓取 爬取 爬虫 采集
screenshot capture screen picture 截图 截屏 截取 屏幕截图
sea ocean surf wave beach 海 海洋 海滩
secure security safe protect 安全 保护
sell sale vendor 卖 出售 销售
send transmit deliver submit post 发送 发 提交 传送 寄
seo keyword ranking optimization 关键词 排名
server host cloud 服务器 云
shoe footwear sneaker 鞋
shop store retailer retail shopping 商店 店铺 购物
singer artist band musician 歌手
size length large big bytes 大小 多大 尺寸 体积
slide presentation powerpoint ppt 幻灯片 演示
social tweet twitter facebook instagram 社交 微博
song music track audio playlist 歌曲 音乐 歌 播放
space astronomy planet star mars 太空 天文 行星 宇宙
sport football soccer basketball match league game 体育 足球 篮球 比赛 球队
startup company founder funding 创业
statistics data analytics analysis 统计 数据
story tale narrative fiction 故事 童话
stream watch show video 观看
string text 字符串 文本 文字
student pupil learner 学生
sum total addition 总和 求和 合计
summarize summary overview digest 总结 摘要 概括 概述
task todo chore errand deadline 任务 待办 事项
tax taxation 税 税务 个税
teacher instructor tutor 教师 老师
team club squad 团队 队伍
text document paragraph 文本 文字
ticket booking reservation book reserve 票 车票 门票 订票
time clock timezone hour 时间 几点 时区 时刻 时候
traffic visitor visit
train railway rail 火车 高铁 列车 铁路
transcript transcription subtitle caption 字幕 转录
trend trending popular 趋势 热门 流行
trip travel vacation journey holiday tour tourism itinerary destination visit flight 旅行 旅游 出行 度假
tv television show series 电视 电视剧 剧集
university college campus 大学 高校
url link web address site 网址 链接
user profile account 用户 账号
video clip footage film 视频 短片 录像
voice speech audio spoken speak 语音 声音 朗读
watch movie show series tv 看 观看
weather forecast temperature climate rain wind windy snow sunny tomorrow 天气 气温 温度 下雨
website site web webpage page 网站 网页 站点
wedding marriage bride 婚礼 结婚
wiki wikipedia encyclopedia knowledge 百科
进行
银行卡 bank card
word term keyword 词 词语 单词
workspace project root 工作区
write compose draft author 写 撰写 写作 起草
zip archive compress compressed 压缩 压缩包 解压
"""

_MAX_CHARS: Final = 4
"""Length of the longest Chinese words."""


class RelatedTerms:
    """Related index terms by index term, and the known Chinese words. `terms` is the analyser's."""

    def __init__(self, terms: Callable[[str], Sequence[str]]) -> None:
        related: dict[str, dict[str, None]] = defaultdict(dict)
        for group in _GROUPS.splitlines():
            members = [term for word in group.split() for term in (terms(word) if word.isascii() else (word,))]
            for term in members:
                related[term].update(dict.fromkeys(other for other in members if other != term))
        self._related = {term: tuple(others) for term, others in related.items()}

    def of(self, term: str) -> tuple[str, ...]:
        """Return the related terms, in the order of the thesaurus; empty for an unknown word."""
        return self._related.get(term, ())

    def words(self, run: str) -> Iterator[str]:
        """Yield the known words in a run of Chinese, from left to right, the longest first."""
        at = 0
        while at < len(run):
            for length in range(min(_MAX_CHARS, len(run) - at), 0, -1):
                if run[at : at + length] in self._related:
                    yield run[at : at + length]
                    at += length
                    break
            else:
                at += 1
